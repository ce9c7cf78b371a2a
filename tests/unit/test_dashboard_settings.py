"""Settings that were set in the dashboard: where they stand among the others, and how their file is written."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from postroom import settings
from postroom.app.backup.creating import settings_and_secrets
from postroom.domain.errors import BadInput
from postroom.settings import SettingSource, read_layers
from postroom.settings.files import replace_file
from postroom.settings.live import EDITABLE, planned
from tests.support.commands import in_this_process as postroom

pytestmark = pytest.mark.req("UX-2")

OURS = "dashboard.toml"


def change(home: Path, **values: str) -> tuple[str, ...]:
    """`model__name="x"` sets model.name."""
    named = {key.replace("__", "."): text for key, text in values.items()}
    plan = planned(home, read_layers(home).version, named)
    plan.write()
    return plan.keys


@pytest.fixture(autouse=True)
def _folder(home: Path) -> None:
    home.mkdir()


def test_the_environment_wins_over_the_dashboard_and_the_dashboard_over_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKFILL_ENABLED", raising=False)
    (home / "postroom.toml").write_text("# mine\n[model]\ntimeout_s = 9\nmax_output_tokens = 70\n")
    assert change(home, model__timeout_s="11", backfill__enabled="true") == ("model.timeout_s", "backfill.enabled")
    layers, loaded = read_layers(home), settings.load()
    assert (loaded.model.timeout_s, loaded.model.max_output_tokens, loaded.backfill.enabled) == (11, 70, True)
    sources = [layers.source(("model", name)) for name in ("timeout_s", "max_output_tokens", "name")]
    assert sources == [SettingSource.DASHBOARD, SettingSource.FILE, SettingSource.DEFAULT]
    monkeypatch.setenv("BACKFILL_ENABLED", "false")
    assert settings.load().backfill.enabled is False
    with pytest.raises(BadInput, match=r"is set by BACKFILL_ENABLED in the environment"):
        change(home, backfill__enabled="true")
    assert settings.load().backfill.enabled is False
    assert (home / "postroom.toml").read_text() == "# mine\n[model]\ntimeout_s = 9\nmax_output_tokens = 70\n"


def test_a_value_that_holds_anyway_is_not_written_and_an_empty_one_goes_back(home: Path) -> None:
    (home / "postroom.toml").write_text("[model]\ntimeout_s = 9\nname = 'x'\n")
    assert change(home, model__timeout_s="9", model__name="x") == ()
    assert not (home / OURS).exists()
    change(home, model__timeout_s="11", backfill__rate_limit_per_hour="7")
    assert tomllib.loads((home / OURS).read_text()) == {
        "model": {"timeout_s": 11.0},
        "backfill": {"rate_limit_per_hour": 7},
    }
    assert change(home, model__timeout_s="", backfill__rate_limit_per_hour="") != ()
    assert tomllib.loads((home / OURS).read_text()) == {}
    assert settings.load().model.timeout_s == 9
    change(home, model__name="")
    assert settings.load().model.name is None, "what the file sets can be unset"
    change(home, model__name="x")
    assert settings.load().model.name == "x"
    assert tomllib.loads((home / OURS).read_text()) == {}


HOSTILE = ['gpt "5" \\ mini', "modèle 漢字 🎓", "a'''b\"\"\"c", "# no comment", "[model]", "x = 1", "${HOME} %(x)s {y}"]


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_is_entered_is_read_back_as_it_was_entered(home: Path, text: str) -> None:
    change(home, model__name=text, model__provider="compatible", model__base_url="http://127.0.0.1:1/v1")
    assert settings.load().model.name == text
    assert stat.S_IMODE((home / OURS).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"model__name": "a\nprovider = 'openai'"}, "model.name"),
        ({"model__name": "a\x1bb"}, "model.name"),
        ({"model__provider": "openai"}, "model"),
        ({"model__provider": "other", "model__name": "x"}, "model.provider"),
        ({"model__base_url": "ftp://x"}, "model.base_url"),
        ({"model__base_url": "https://me:secret@x.example/v1"}, "model.base_url"),
        ({"model__input_price": "-1", "model__output_price": "1"}, "model.input_price"),
        ({"model__input_price": "1"}, "model"),
        ({"model__timeout_s": "nan"}, "model.timeout_s"),
        ({"backfill__day_zone": "Nowhere/Here"}, "backfill.day_zone"),
        ({"backfill__enabled": "perhaps"}, "backfill.enabled"),
        ({"discord__allowed_users": "me"}, "discord.allowed_users"),
        ({"safety__min_confidence": "0"}, "safety.min_confidence"),
        ({"model__api_key": "sk-x"}, "model.api_key"),
        ({"archiver__enabled": "true"}, "archiver.enabled"),
    ],
)
def test_a_mistake_is_named_by_its_key_and_changes_nothing(home: Path, values: dict[str, str], field: str) -> None:
    change(home, model__timeout_s="11")
    before = (home / OURS).read_bytes()
    with pytest.raises(BadInput) as refusal:
        change(home, **values)
    assert refusal.value.field == field
    assert (home / OURS).read_bytes() == before


@pytest.mark.parametrize("name", ["postroom.toml", OURS])
def test_a_form_made_from_older_files_is_refused_and_overwrites_nothing(home: Path, name: str) -> None:
    version = read_layers(home).version
    plan = planned(home, version, {"model.timeout_s": "11"})
    replace_file(home / name, b"[model]\ntimeout_s = 30.0\n")
    with pytest.raises(BadInput, match="version: changed meanwhile"):
        planned(home, version, {"model.timeout_s": "11"})
    with pytest.raises(BadInput, match="version: changed meanwhile"):
        plan.write()
    assert settings.load().model.timeout_s == 30


def test_writing_a_change_again_is_writing_it_once(home: Path) -> None:
    """A transaction may be run again after a deadlock."""
    plan = planned(home, read_layers(home).version, {"model.timeout_s": "11"})
    plan.write()
    plan.write()
    assert settings.load().model.timeout_s == 11


def test_a_bad_value_in_the_dashboards_file_says_where_it_is(home: Path) -> None:
    (home / OURS).write_text("[model]\ntimeout_s = -1\n")
    with pytest.raises(BadInput, match=rf"model\.timeout_s: .*set in the dashboard: .*{OURS}"):
        settings.load()


def test_no_secret_and_nothing_that_removes_mail_or_loosens_safety_can_be_set_there() -> None:
    for key in EDITABLE:
        group, name = key.split(".")
        kind = settings.Settings.model_fields[group].annotation
        assert kind is not None
        assert "SecretStr" not in str(kind.model_fields[name].annotation), key
        assert group not in ("archiver", "safety", "database", "switchboard"), key


def test_the_command_line_lists_the_same_values_and_where_they_come_from(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_MODEL__API_KEY", "sk-not-to-be-seen")
    (home / "postroom.toml").write_text("[queue]\nkeep_failed_days = 5\n")
    change(home, model__timeout_s="11")
    listed = postroom("settings", "list", "--json")
    assert [(each["key"], each["value"], each["source"], each["variable"]) for each in listed.json] == [
        ("queue.keep_failed_days", "5", "file", None),
        ("model.api_key", "(set)", "environment", "POSTROOM_MODEL__API_KEY"),
        ("model.timeout_s", "11.0", "dashboard", None),
    ]
    assert "the dashboard (dashboard.toml)" in postroom("settings", "list").stdout
    assert len(postroom("settings", "list", "--all", "--json").json) > 100


def test_a_backup_holds_what_was_set_and_defined(home: Path) -> None:
    change(home, model__timeout_s="11")
    (home / "categories.toml").write_text("version = 1\n")
    assert {OURS, "categories.toml"} <= set(settings_and_secrets(home, with_key=False))
