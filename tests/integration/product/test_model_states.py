"""A model that cannot be asked stops nothing: services start and say why, rules decide, the rest waits for a person."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from postroom.app import open_app
from postroom.app.worker import open_worker
from postroom.dashboard.overview import needs
from postroom.db.tables.triage import decisions, model_calls
from postroom.domain.checkups import CheckVerdict
from postroom.domain.jobs import CLASSIFY
from postroom.queue import NewJob
from postroom.settings import DatabaseSettings, ModelSettings, RecurringSettings, Settings
from postroom.sim.model.server import ModelSim, running_model
from postroom.triage.model import VAULT_ENTRY, examine_model, model_problem
from postroom.vault import Vault
from tests.support.actions import make_account, make_message
from tests.support.commands import PostroomProcess, postroom

pytestmark = pytest.mark.req("HW-7")

NO_KEY = ModelSettings(provider="openai", name="gpt-5-mini")
NO_PRICE = ModelSettings(provider="compatible", name="nobody-knows", base_url="http://127.0.0.1:1/v1")
QUIET = RecurringSettings(live="off", sync="off", labels="off", bad_messages="off", sentinel="off")


def told(settings: ModelSettings, vault: Vault) -> list[tuple[CheckVerdict, str]]:
    return [(finding.verdict, finding.text) for finding in examine_model(settings, vault)]


def test_the_state_of_a_model_is_told_without_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Vault(tmp_path)
    assert told(ModelSettings(), vault) == [(CheckVerdict.OK, "No model is configured; rules decide alone.")]
    assert model_problem(ModelSettings(), vault) is None
    problem = model_problem(NO_KEY, vault)
    assert problem is not None
    assert "OpenAI needs a key" in problem
    assert "postroom account model-key" in problem
    assert "Set model.input_price and model.output_price" in (model_problem(NO_PRICE, vault) or "")
    vault.put(VAULT_ENTRY, b"sk-kept")
    assert [verdict for verdict, _ in told(NO_KEY, vault)] == [CheckVerdict.OK] * 3
    assert model_problem(NO_KEY, vault) is None
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    assert "pip install 'postroom[models]'" in (model_problem(NO_KEY, vault) or "")


@pytest.mark.parametrize("model", [NO_KEY, NO_PRICE], ids=["no key", "no price"])
async def test_mail_that_no_rule_decides_goes_to_review_and_nothing_is_spent(
    tmp_path: Path, database_url: str, model: ModelSettings
) -> None:
    settings = Settings(home=tmp_path, database=DatabaseSettings(url=database_url), recurring=QUIET, model=model)
    async with open_app(settings) as app:
        account = await make_account(app.database, app.clock, "me@example.org", "http://127.0.0.1:1")
        message_id = await make_message(app.database, app.clock, account, "18f")
        await app.queue.enqueue(NewJob(CLASSIFY.name, {"message_id": message_id}))
        async with open_worker(app, until_idle=True) as worker:
            await worker.run()
        [decided] = await app.database.read(lambda tx: tx.execute(select(decisions)).all())
        assert decided.needs_review
        assert decided.reason.startswith("No rule decides it, and the model cannot be asked.")
        assert await app.database.read(lambda tx: tx.execute(select(model_calls)).all()) == []
        problem = model_problem(model, app.vault)
        said = await app.database.read(lambda tx: needs(tx, settings, [], app.clock.now(), problem))
        assert f"The model is not used, and only rules decide: {problem}" in [need.text for need in said]


async def test_up_starts_without_a_key_and_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    variables = {"POSTROOM_MODEL__PROVIDER": "openai", "POSTROOM_MODEL__NAME": "gpt-5-mini"}
    variables["POSTROOM_SWITCHBOARD__PORT"] = "0"
    up = PostroomProcess("up", "--json", home=tmp_path / "home", variables=variables)
    await up.start()
    try:
        assert (await up.ready())["url"].startswith("http://127.0.0.1:")
        await up.logged("up.serving")
        code, log = await up.end()
    finally:
        await up.kill()
    assert code == 0, log
    assert "Traceback" not in log
    [line] = [line for line in log.splitlines() if "model.not_asked" in line]
    assert "OpenAI needs a key" in line


def configured(monkeypatch: pytest.MonkeyPatch, sim: ModelSim, **changes: Any) -> None:
    values = {
        "provider": "compatible",
        "name": "simulated-small",
        "base_url": sim.url,
        "api_key": sim.token,
        "input_price": Decimal("0.30"),
        "output_price": Decimal("2.50"),
    }
    for name, value in (values | changes).items():
        monkeypatch.setenv(f"POSTROOM_MODEL__{name.upper()}", str(value))


async def test_model_check_makes_one_call_that_is_on_the_books(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_model() as sim:
        configured(monkeypatch, sim)
        done = await postroom("model", "check")
        assert done.code == 0, done.stdout + done.stderr
        assert "answered in" in done.stdout
        assert "for less than $0.01" in done.stdout
        assert len(sim.responder.prompts) == 1
        async with open_app(Settings(home=home)) as app:
            [call] = await app.database.read(lambda tx: tx.execute(select(model_calls)).all())
        assert (call.message_id, call.outcome, call.simulated) == (None, "answered", True)
        assert 0 < call.cost_microdollars < 2_000


async def test_model_check_says_why_a_call_fails_and_makes_none_without_a_price(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_model() as sim:
        configured(monkeypatch, sim, api_key="sk-another")
        done = await postroom("model", "check")
        assert done.code == 1
        assert "does not accept the key; check model.api_key" in done.stdout
        configured(monkeypatch, sim)
        for name in ("INPUT_PRICE", "OUTPUT_PRICE"):
            monkeypatch.delenv(f"POSTROOM_MODEL__{name}")
        asked = len(sim.responder.prompts)
        done = await postroom("model", "check")
        assert done.code == 1
        assert "The price of simulated-small is not known, so it is not asked." in done.stdout
        assert len(sim.responder.prompts) == asked


async def test_the_doctor_has_findings_for_the_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_model() as sim:
        configured(monkeypatch, sim)
        done = await postroom("doctor")
        assert done.code == 0
        assert (
            f"simulated-small at a server that speaks OpenAI's API ({sim.url}) is configured."
            in done.stdout.replace("\n", " ")
        )
        assert "Its price is known" in done.stdout
        assert not sim.responder.prompts
        done = await postroom("doctor", "--call-model")
        assert done.code == 0
        assert "answered in" in done.stdout
        assert len(sim.responder.prompts) == 1
    monkeypatch.setenv("POSTROOM_MODEL__PROVIDER", "openai")
    monkeypatch.delenv("POSTROOM_MODEL__API_KEY")
    done = await postroom("doctor")
    assert done.code == 1
    assert "OpenAI needs a key, and none is set." in done.stdout
