"""The model's client against the stand-in: answers, costs, and every way in which a call can fail."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from postroom.domain.clock import SystemClock
from postroom.domain.errors import BadInput, Fatal, PostroomError, Retryable
from postroom.settings import ModelSettings
from postroom.sim.model.answers import ModelFault
from postroom.sim.model.answers import ScriptedAnswer as Scripted
from postroom.sim.model.server import running_model
from postroom.triage.model import VAULT_ENTRY, api_key, open_model
from postroom.triage.questions import CallFailed, ModelAnswer, ModelQuestion, ModelRefused, ModelTool
from postroom.vault import Vault
from tests.support.triage import INPUT_PRICE, OUTPUT_PRICE, model_on, settings_for, simulated_model

TOOL = ModelTool(
    "decide",
    "Say what to do.",
    {
        "type": "object",
        "properties": {"action": {"type": "string", "enum": ["archive", "none"]}},
        "required": ["action"],
        "additionalProperties": False,
    },
)
QUESTION = ModelQuestion("You sort mail.", "Here it is.", (TOOL,))


async def test_an_answer_has_its_call_its_tokens_its_cost_and_its_mark(tmp_path: Path) -> None:
    async with simulated_model(tmp_path) as (sim, model):
        sim.responder.stage.queue.append(
            Scripted(arguments={"action": "archive"}, input_tokens=1_001, output_tokens=33)
        )
        answer = await model.ask(QUESTION)
    assert isinstance(answer, ModelAnswer)
    assert [(call.name, call.arguments) for call in answer.calls] == [("decide", '{"action": "archive"}')]
    assert (answer.used.input, answer.used.output) == (1_001, 33)
    assert Decimal("382.8") == 1_001 * INPUT_PRICE + 33 * OUTPUT_PRICE
    assert answer.cost == 383
    assert answer.is_simulated
    assert not answer.is_cut
    assert "You sort mail." in sim.responder.prompts[0]


async def test_the_same_seed_and_question_get_the_same_made_up_answer(tmp_path: Path) -> None:
    async def calls(seed: int, content: str) -> tuple[str, ...]:
        async with simulated_model(tmp_path, seed) as (_, model):
            answer = await model.ask(ModelQuestion("You sort mail.", content, (TOOL,)))
            assert isinstance(answer, ModelAnswer)
            return tuple(call.arguments for call in answer.calls)

    assert await calls(1, "a") == await calls(1, "a")
    assert len({await calls(1, f"letter {number}") for number in range(12)}) == 2


async def failure_of(tmp_path: Path, fault: ModelFault, *, answered_before: int = 0, **changes: Any) -> CallFailed:
    async with simulated_model(tmp_path, **changes) as (sim, model):
        for _ in range(answered_before):
            assert isinstance(await model.ask(QUESTION), ModelAnswer)
        sim.responder.stage.add_fault(fault)
        failed = await model.ask(QUESTION)
        requests = sim.responder.tally.requests
        assert requests == answered_before + 1, "the provider's library tried again behind our back"
    assert isinstance(failed, CallFailed)
    return failed


FIRST_OR_LATER = pytest.mark.parametrize("answered_before", [0, 1], ids=["first call", "later call"])


@pytest.mark.req("JB-7")
@FIRST_OR_LATER
@pytest.mark.parametrize(
    ("fault", "kind", "may_have_cost"),
    [
        (ModelFault(kind="error", code=500), Retryable, False),
        (ModelFault(kind="error", code=503), Retryable, False),
        (ModelFault(kind="error", code=429), Retryable, False),
        (ModelFault(kind="error", code=401), Fatal, False),
        (ModelFault(kind="error", code=404), Fatal, False),
        (ModelFault(kind="error", code=400), ModelRefused, False),
        (ModelFault(kind="drop"), Retryable, True),
        (ModelFault(kind="truncate"), Retryable, True),
        (ModelFault(kind="malformed_json"), Retryable, True),
    ],
)
async def test_every_failure_says_whether_to_try_again_and_whether_it_may_have_cost(
    tmp_path: Path, fault: ModelFault, kind: type[PostroomError], may_have_cost: bool, answered_before: int
) -> None:
    failed = await failure_of(tmp_path, fault, answered_before=answered_before)
    assert type(failed.error) is kind
    assert failed.may_have_cost is may_have_cost
    assert "Here it is" not in failed.error.message


@FIRST_OR_LATER
async def test_the_providers_wish_to_wait_is_kept(tmp_path: Path, answered_before: int) -> None:
    fault = ModelFault(kind="error", code=429, retry_after_s=17)
    failed = await failure_of(tmp_path, fault, answered_before=answered_before)
    assert isinstance(failed.error, Retryable)
    assert failed.error.retry_after == timedelta(seconds=17)


@FIRST_OR_LATER
async def test_an_answer_that_takes_too_long_is_given_up_and_may_have_cost(
    tmp_path: Path, answered_before: int
) -> None:
    failed = await failure_of(tmp_path, ModelFault(kind="hang"), answered_before=answered_before, timeout_s=0.5)
    assert isinstance(failed.error, Retryable)
    assert failed.may_have_cost


async def test_a_server_that_is_not_there_costs_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with running_model() as sim, model_on(sim, tmp_path, base_url=f"http://127.0.0.1:{port}/v1") as model:
        failed = await model.ask(QUESTION)
    assert isinstance(failed, CallFailed)
    assert isinstance(failed.error, Retryable)
    assert not failed.may_have_cost


async def test_a_server_that_is_gone_by_the_second_call_costs_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as while_it_lives:
        sim = await while_it_lives.enter_async_context(running_model())
        async with model_on(sim, tmp_path) as model:
            assert isinstance(await model.ask(QUESTION), ModelAnswer)
            await while_it_lives.aclose()
            failed = await model.ask(QUESTION)
    assert isinstance(failed, CallFailed)
    assert isinstance(failed.error, Retryable)
    assert not failed.may_have_cost


@FIRST_OR_LATER
@pytest.mark.parametrize("fault", ["malformed_tool_call", "unknown_tool", "text"])
async def test_a_strange_answer_is_an_answer_all_the_same_and_is_paid_for(
    tmp_path: Path, fault: Any, answered_before: int
) -> None:
    async with simulated_model(tmp_path) as (sim, model):
        for _ in range(answered_before):
            await model.ask(QUESTION)
        sim.responder.stage.add_fault(ModelFault(kind=fault))
        answer = await model.ask(QUESTION)
    assert isinstance(answer, ModelAnswer)
    assert answer.cost


async def test_an_answer_longer_than_the_limit_is_cut(tmp_path: Path) -> None:
    async with simulated_model(tmp_path, max_output_tokens=50) as (sim, model):
        sim.responder.stage.queue.append(Scripted(arguments={"action": "x" * 1_000}))
        answer = await model.ask(QUESTION)
    assert isinstance(answer, ModelAnswer)
    assert answer.is_cut
    assert answer.used.output <= 50


async def test_no_model_is_a_supported_state(tmp_path: Path) -> None:
    async with open_model(ModelSettings(), Vault(tmp_path), SystemClock()) as model:
        assert model is None


@pytest.mark.req("BF-9")
async def test_a_model_without_a_price_is_not_opened(tmp_path: Path) -> None:
    settings = ModelSettings(provider="compatible", name="nobody-knows", base_url="http://127.0.0.1:1/v1")
    with pytest.raises(BadInput, match="price of nobody-knows is not known"):
        async with open_model(settings, Vault(tmp_path), SystemClock()):
            pass


async def test_the_key_comes_from_the_settings_or_the_vault_and_is_needed_by_the_big_providers(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    async with running_model() as sim:
        assert api_key(settings_for(sim), vault) == sim.token
    settings = ModelSettings(provider="openai", name="gpt-5-mini")
    with pytest.raises(BadInput, match=r"model\.api_key"):
        async with open_model(settings, vault, SystemClock()):
            pass
    vault.put(VAULT_ENTRY, b"sk-kept")
    assert api_key(settings, vault) == "sk-kept"
    for name, provider in (("gpt-5-mini", "openai"), ("claude-haiku-4-5", "anthropic")):
        settings = ModelSettings(provider=provider, name=name)
        async with open_model(settings, vault, SystemClock()) as model:
            assert model is not None
            assert model.most_for(ModelQuestion("", "hello", ())) > 0
