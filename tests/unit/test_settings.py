"""Settings: where they come from, and what happens to mistakes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from postroom import settings
from postroom.domain.errors import BadInput
from postroom.settings.tree import setting_groups


def write(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "postroom.toml").write_text(text)


def test_without_a_file_the_defaults_hold_and_the_home_folder_is_private(home: Path) -> None:
    loaded = settings.load()
    assert loaded.database_url == f"sqlite:///{home}/postroom.db"
    assert loaded.queue.max_consecutive_same_tier == 10
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_the_environment_wins_over_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "[worker]\nconcurrency = 3\nlease_s = 9")
    monkeypatch.setenv("POSTROOM_WORKER__CONCURRENCY", "7")
    loaded = settings.load()
    assert (loaded.worker.concurrency, loaded.worker.lease_s) == (7, 9)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[worker]\nconcurency = 3", "worker.concurency"),
        ("[wroker]\nconcurrency = 3", "wroker"),
        ("[worker]\nconcurrency = 0", "worker.concurrency"),
        ("[worker]\nconcurrency = 'many'", "worker.concurrency"),
        ("[telemetry]\nmetrics_token = 'short'", "telemetry.metrics_token"),
        ("[model]\nprovider = 'openai'", "model"),
        ("[model]\nprovider = 'compatible'\nname = 'x'", "model"),
        ("[model]\nname = 'x'\ninput_price = 1", "model"),
        ("[model]\nbase_url = 'ftp://x'", "model.base_url"),
        ("[sync]\nsettle_s = inf", "sync.settle_s"),
        ("[sync]\npoll_s = nan", "sync.poll_s"),
        ("home = '/elsewhere'", "home"),
        ("vault_key = 'beside what it locks'", "vault_key"),
    ],
)
def test_a_mistake_in_the_file_is_named_by_its_key(home: Path, text: str, field: str) -> None:
    write(home, text)
    with pytest.raises(BadInput) as refusal:
        settings.load()
    assert refusal.value.field == field


def test_a_file_that_is_not_toml_is_named(home: Path) -> None:
    write(home, "worker: {}")
    with pytest.raises(BadInput, match=r"postroom\.toml: is not valid TOML"):
        settings.load()


def test_an_unknown_variable_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_WORKER__CONCURENCY", "7")
    with pytest.raises(BadInput, match="POSTROOM_WORKER__CONCURENCY: no such setting"):
        settings.load()


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POSTROOM_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(BadInput, match=r"POSTROOM_HOME: .* cannot be created"):
        settings.load()


@pytest.mark.req("PL-6")
def test_secrets_are_not_in_what_settings_print(home: Path) -> None:
    write(home, "[database]\nurl = 'postgresql://me:hunter2hunter2@db/postroom'")
    loaded = settings.load()
    assert "hunter2" not in repr(loaded)
    assert list(loaded.secrets()) == ["postgresql://me:hunter2hunter2@db/postroom", "hunter2hunter2"]


@pytest.mark.req("PL-6")
def test_the_key_of_the_vault_comes_from_the_environment_and_is_kept_out_of_sight(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_VAULT_KEY", "a-key-that-nobody-may-see")
    loaded = settings.load()
    assert "a-key-that" not in repr(loaded)
    assert list(loaded.secrets()) == ["a-key-that-nobody-may-see"]


@pytest.mark.req("WB-6")
def test_the_kill_switch_of_backfill_is_off_until_its_own_variable_says_otherwise(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKFILL_ENABLED", raising=False)
    assert settings.load().backfill.enabled is False
    for text, is_on in (("true", True), ("1", True), ("false", False), ("", False)):
        monkeypatch.setenv("BACKFILL_ENABLED", text)
        assert settings.load().backfill.enabled is is_on
    monkeypatch.setenv("BACKFILL_ENABLED", "perhaps")
    with pytest.raises(BadInput, match=r"backfill\.enabled"):
        settings.load()


@pytest.mark.req("WB-6")
def test_the_variable_wins_over_the_file_and_goes_by_no_other_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "[backfill]\nenabled = true\nlease_s = 60")
    monkeypatch.setenv("BACKFILL_ENABLED", "false")
    loaded = settings.load().backfill
    assert (loaded.enabled, loaded.lease_s) == (False, 60)
    monkeypatch.setenv("POSTROOM_BACKFILL__ENABLED", "true")
    with pytest.raises(BadInput, match="POSTROOM_BACKFILL__ENABLED: no such setting"):
        settings.load()


def test_a_zone_that_does_not_exist_is_refused(home: Path) -> None:
    write(home, "[backfill]\nday_zone = 'Mars/Olympus'")
    with pytest.raises(BadInput, match=r"backfill\.day_zone: .*Europe/Zagreb"):
        settings.load()


def test_every_setting_has_a_line_of_help() -> None:
    for _, group in settings.reference():
        for setting in group:
            assert setting.help, f"{setting.key} has no description"


def test_every_group_of_settings_has_a_short_heading() -> None:
    titles = [title for title, _ in settings.reference()]
    assert len({*titles}) == len(titles) == len([*setting_groups()]) + 1
    assert all(len(title.split()) <= 4 and not title.endswith(".") for title in titles)


def test_a_model_is_configured_by_the_environment_and_its_key_is_a_secret(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.load().model.provider is None
    write(home, "[model]\nprovider = 'openai'\nname = 'gpt-5-mini'\ninput_price = '0.25'\noutput_price = 2")
    monkeypatch.setenv("POSTROOM_MODEL__API_KEY", "sk-secret-key")
    loaded = settings.load()
    assert (loaded.model.name, str(loaded.model.input_price)) == ("gpt-5-mini", "0.25")
    assert "sk-secret-key" in set(loaded.secrets())
    assert "sk-secret-key" not in repr(loaded)
