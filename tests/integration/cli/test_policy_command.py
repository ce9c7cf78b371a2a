"""`postroom policy` and `postroom account model-key` as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from postroom.cli.mail import account, categories
from postroom.domain.errors import BadInput
from postroom.mail.tier_policy import RULES
from postroom.triage.model import VAULT_ENTRY
from postroom.vault import Vault

RUNNER = CliRunner()


@pytest.mark.req("BF-20")
def test_the_rules_are_shown_changed_and_refused_by_name(home: Path, tmp_path: Path) -> None:
    shown = json.loads(RUNNER.invoke(categories.policy, ["show", "--json"], catch_exceptions=False).stdout)
    assert [rule["note"] for rule in shown] == [rule["note"] for rule in RULES]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(shown[:2]))
    assert "2 rules can be read" in RUNNER.invoke(categories.policy, ["set", str(file), "--dry-run"]).stdout
    assert "2 rules are in force" in RUNNER.invoke(categories.policy, ["set", str(file)]).stdout
    assert "spam" in RUNNER.invoke(categories.policy, ["show"]).stdout
    file.write_text(json.dumps([shown[0] | {"tier": 9}]))
    with pytest.raises(BadInput, match="tier"):
        RUNNER.invoke(categories.policy, ["set", str(file)], catch_exceptions=False)
    file.write_text("[")
    with pytest.raises(BadInput, match="not JSON"):
        RUNNER.invoke(categories.policy, ["set", str(file)], catch_exceptions=False)
    assert len(json.loads(RUNNER.invoke(categories.policy, ["show", "--json"]).stdout)) == 2


@pytest.mark.req("PL-6")
def test_the_models_key_goes_into_the_vault_and_nowhere_else(home: Path) -> None:
    done = RUNNER.invoke(account.app, ["model-key"], input="sk-secret-1\n", catch_exceptions=False)
    assert "sk-secret-1" not in done.output
    assert Vault(home).get(VAULT_ENTRY) == b"sk-secret-1"
    assert not any(b"sk-secret-1" in file.read_bytes() for file in home.rglob("*") if file.is_file())
    with pytest.raises(BadInput, match="key"):
        RUNNER.invoke(account.app, ["model-key"], input="\n", catch_exceptions=False)
    assert "Removed." in RUNNER.invoke(account.app, ["model-key", "--remove"]).output
    assert Vault(home).get(VAULT_ENTRY) is None
