"""Classification against a real small language model, which was not written for us: calls read, answers asked for
again, prices booked and time limits kept. It is skipped with a sentence where its packages cannot be installed, or
where the machine is too busy for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from postroom.db import Database
from postroom.db.tables.triage import decisions, model_calls, model_reservations
from postroom.domain.actions import ReviewCause
from postroom.domain.clock import SystemClock
from postroom.domain.model_costs import FixedTariff, TokenCounts
from postroom.queue import JobState
from postroom.settings import ModelSettings
from postroom.sim.model.server import running_model
from postroom.triage.model import open_model
from postroom.vault import Vault
from tests.support.databases import on_sqlite
from tests.support.language_model import PROMPT_TOKENS, LanguageModel, NoLanguageModel, running_language_model
from tests.support.triage import INPUT_PRICE, OUTPUT_PRICE, TriageRig

pytestmark = [on_sqlite, pytest.mark.timeout(900), pytest.mark.xdist_group("language model")]
_LONGEST_QUESTION_S = 10
_PATIENTLY = "POSTROOM_TEST_SLOW_MODEL"
"""Set, the tests also run where the model is slow."""


@pytest.fixture(scope="module")
def language_model() -> Iterator[LanguageModel]:
    try:
        with running_language_model() as model:
            expected = PROMPT_TOKENS / model.tokens_per_second
            if expected > _LONGEST_QUESTION_S and not os.environ.get(_PATIENTLY):
                pytest.skip(
                    f"This machine reads {model.tokens_per_second:.0f} tokens a second now, so a question would take "
                    f"the real model {expected:.0f} s; set {_PATIENTLY} to run it all the same."
                )
            yield model
    except NoLanguageModel as error:
        pytest.skip(f"No real language model here: {error}")


@pytest.fixture
async def office(database: Database, language_model: LanguageModel, tmp_path: Path) -> AsyncIterator[TriageRig]:
    async with running_model() as unused, open_model(settings(language_model), Vault(tmp_path), SystemClock()) as model:
        assert model is not None
        office = TriageRig(database, SystemClock(), unused, model)  # type: ignore[arg-type]
        await office.open_account()
        office.use(name="calls")
        yield office


def settings(model: LanguageModel, name: str = "calls", **changes: object) -> ModelSettings:
    values: dict[str, object] = {
        "provider": "compatible",
        "name": name,
        "base_url": model.url,
        "api_key": SecretStr("none"),
        "input_price": INPUT_PRICE,
        "output_price": OUTPUT_PRICE,
        "max_output_tokens": 400,
        "timeout_s": 600,
    }
    return ModelSettings.model_validate(values | changes)


NEWS: dict[str, Any] = {
    "sender_identity": "news@shop.example",
    "subject": "Offers of the week",
    "text": "Everything is cheaper this week.",
    "headers": {"from": "news@shop.example", "list-unsubscribe": "<https://shop.example/out>"},
}


@pytest.mark.req("JB-9")
async def test_a_real_model_decides_by_one_call_and_is_charged_for_what_it_used(office: TriageRig) -> None:
    await office.take_in(**NEWS)
    await office.work()
    assert await office.job_states() == [JobState.COMPLETED]
    made = await office.only(decisions)
    calls = await office.rows(model_calls)
    assert made.source == "llm" or made.review_cause == ReviewCause.UNUSABLE_ANSWER, made.reason
    assert len(calls) == 1 or (len(calls) == 2 and calls[0].outcome == "unusable")
    tariff = FixedTariff(INPUT_PRICE, OUTPUT_PRICE)
    for call, reserved in zip(calls, await office.rows(model_reservations), strict=True):
        assert call.input_tokens > 100
        assert call.output_tokens > 0
        assert call.cost_microdollars == tariff.cost(TokenCounts(call.input_tokens, call.output_tokens))
        assert call.cost_microdollars <= reserved.most_microdollars
        assert reserved.settled_microdollars == call.cost_microdollars


@pytest.mark.req("JB-9")
async def test_a_real_model_that_talks_is_asked_once_more_and_then_left_to_a_person(
    office: TriageRig, language_model: LanguageModel, tmp_path: Path
) -> None:
    talkative = settings(language_model, "talks", max_output_tokens=50)
    async with open_model(talkative, Vault(tmp_path), SystemClock()) as model:
        assert model is not None
        office.model = model
        office.use(name="talks")
        await office.take_in(**NEWS)
        await office.work()
    made = await office.only(decisions)
    assert (made.source, made.review_cause) == ("none", ReviewCause.UNUSABLE_ANSWER)
    calls = await office.rows(model_calls)
    assert [call.outcome for call in calls] == ["unusable", "unusable"]
    assert all(call.cost_microdollars > 0 for call in calls)


@pytest.mark.req("JB-9")
async def test_a_real_model_that_takes_too_long_is_not_waited_for(
    office: TriageRig, language_model: LanguageModel, tmp_path: Path
) -> None:
    """What it may have cost stays in the books at its most."""
    hasty = settings(language_model, timeout_s=0.05)
    async with open_model(hasty, Vault(tmp_path), SystemClock()) as model:
        assert model is not None
        office.model = model
        office.use(name="calls")
        await office.take_in(**NEWS)
        await office.work()
    [call] = await office.rows(model_calls)
    [reserved] = await office.rows(model_reservations)
    assert call.outcome == "failed"
    assert call.cost_microdollars == reserved.most_microdollars
    assert await office.rows(decisions) == []
