"""The short way to a model: it asks what the library would ask, and an answer means what it means to the library."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pydantic_ai.messages import ModelResponse

from postroom.domain.clock import SystemClock
from postroom.domain.model_costs import FixedTariff
from postroom.settings import ModelSettings
from postroom.triage.chat_completions import _MOST_FORMS, ChatCompletions, ModelHttp
from postroom.triage.choices import ToolOffer
from postroom.triage.model import open_model
from postroom.triage.model_client import ModelClient, model_of
from postroom.triage.prompt import Briefing, question_about
from postroom.triage.questions import CallFailed, ModelAnswer, ModelQuestion, ModelTool
from postroom.vault import Vault
from tests.integration.triage.test_providers import OFFER, OPENAI, QUESTION, provider
from tests.support.injections import Injection

OTHER = question_about(Injection("other", 'Zoë said "no"\n\\ <mail> 🙂').mail(), Briefing(offer=OFFER), "it was cut")
NAMES = [
    ("openai", "gpt-5-mini"),
    ("openai", "o1-mini"),
    ("openai", "gpt-4o"),
    ("compatible", "some-local-model"),
    ("compatible", "qwen/qwen3-coder"),
    ("compatible", "deepseek/deepseek-reasoner"),
    ("compatible", "mistralai/magistral-small"),
    ("compatible", "google/gemini-2.5-flash"),
]


KEY = "sk-nobody-knows-this-key"


def settings_at(kind: str, name: str, url: str) -> ModelSettings:
    values: dict[str, Any] = {"provider": kind, "name": name, "base_url": f"{url}/v1", "api_key": SecretStr(KEY)}
    return ModelSettings(**values, input_price=1, output_price=1)


async def asked(kind: str, name: str, folder: Path, url: str, *questions: ModelQuestion) -> list[Any]:
    async with open_model(settings_at(kind, name, url), Vault(folder), SystemClock()) as model:
        assert model is not None
        return [await model.ask(question) for question in questions]


@pytest.mark.req("JB-10")
@pytest.mark.parametrize(("kind", "name"), NAMES)
async def test_what_is_asked_the_short_way_is_what_the_library_asks(tmp_path: Path, kind: str, name: str) -> None:
    async with provider(OPENAI) as (server, url):
        for questions in ([QUESTION, OTHER], [OTHER]):
            await asked(kind, name, tmp_path, url, *questions)
    first, short, by_library = server.asked
    assert first["messages"] != by_library["messages"]
    assert short == by_library


@pytest.mark.req("JB-10")
async def test_each_set_of_tools_is_sent_as_it_is(tmp_path: Path) -> None:
    fewer = replace(OTHER, tools=ToolOffer().tools())
    async with provider(OPENAI) as (server, url):
        await asked("compatible", "some-local-model", tmp_path, url, QUESTION, fewer, OTHER, fewer)
    sent = [[tool["function"]["name"] for tool in request["tools"]] for request in server.asked]
    assert sent == [[tool.name for tool in question.tools] for question in (QUESTION, fewer, OTHER, fewer)]


def changed(*path: str | int, **values: Any) -> dict[str, Any]:
    """The plain answer, with these values at the end of the path; one that is `...` is taken away."""
    answer = json.loads(json.dumps(OPENAI))
    place: Any = answer
    for step in path:
        place = place[step]
    place.update(values)
    for name in [name for name, value in values.items() if value is ...]:
        del place[name]
    return dict(answer)


MESSAGE = ("choices", 0, "message")
CALL = (*MESSAGE, "tool_calls", 0)
DETAILS = {
    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": None, "cache_write_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 0},
}
PLAIN = {
    "an answer": OPENAI,
    "cached tokens": changed("usage", **DETAILS),
    "a price of its own": changed("usage", cost=0.001),
    "cut": changed("choices", 0, finish_reason="length"),
    "two calls": changed(*MESSAGE, tool_calls=OPENAI["choices"][0]["message"]["tool_calls"] * 2),  # type: ignore[index]
    "names that no one knows": changed(timings={"prompt_ms": 1.5}, system_fingerprint="fp"),
    "reasoning": changed(*MESSAGE, reasoning_content="Hm."),
    "simulated": changed(id="simulated-9"),
    "arguments that are no JSON": changed(*CALL, function={"name": "x", "arguments": "{,"}),
}
STRANGE = {
    "text": changed(*MESSAGE, content="I would rather talk.", tool_calls=None),
    "text and a call": changed(*MESSAGE, content="Let me see."),
    "thoughts in the text": changed(*MESSAGE, content="<think>Hm.</think>So."),
    "text in parts": changed(*MESSAGE, content=[{"type": "text", "text": "So."}]),
    "a refusal": changed(*MESSAGE, refusal="No."),
    "no calls": changed(*MESSAGE, tool_calls=[]),
    "no reason to end": changed("choices", 0, finish_reason=None),
    "another reason to end": changed("choices", 0, finish_reason="guardrail_intervened"),
    "filtered": changed("choices", 0, finish_reason="content_filter"),
    "no usage": changed(usage=...),
    "usage of nothing": changed(usage=None),
    "usage in words": changed("usage", prompt_tokens="10"),
    "usage as fractions": changed("usage", prompt_tokens=10.0),
    "half of the usage": changed("usage", completion_tokens=...),
    "no time": changed(created=None),
    "no name": changed(model=...),
    "no choice": changed(choices=[]),
    "two choices": changed(choices=OPENAI["choices"] * 2),  # type: ignore[operator]
    "an error": {"error": {"message": "The mail is here", "code": 502}},
    "arguments as an object": changed(*CALL, function={"name": "apply_label", "arguments": {"label": "Receipts"}}),
    "a call without a name": changed(*CALL, function={"arguments": "{}"}),
    "a number for an id": changed(id=7),
    "another kind of object": changed(object="chat.completion.chunk"),
    "a level of service": changed(service_tier=5),
    "a list": [OPENAI],
}


def told(outcome: ModelAnswer | CallFailed) -> object:
    """All but how long it took."""
    if isinstance(outcome, CallFailed):
        return type(outcome.error), outcome.error.message, outcome.may_have_cost
    return replace(outcome, latency_ms=0)


@pytest.mark.req("JB-7", "JB-10")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the library, about what is strange
@pytest.mark.parametrize("answer", [*PLAIN.values(), *STRANGE.values()], ids=[*PLAIN, *STRANGE])
async def test_an_answer_means_what_it_means_to_the_library(tmp_path: Path, answer: Any) -> None:
    async with provider(answer) as (server, url):
        first, short = await asked("compatible", "x", tmp_path, url, QUESTION, QUESTION)
    assert told(short) == told(first)
    assert len(server.asked) == 2, "a question was sent twice"


@pytest.mark.parametrize("answer", PLAIN.values(), ids=PLAIN)
async def test_a_plain_answer_needs_the_library_for_the_first_question_alone(answer: Any) -> None:
    async with provider(answer) as (server, url), ModelHttp() as http:
        settings = settings_at("compatible", "x", url)
        model = model_of(settings, KEY, http)
        client = ModelClient(model, http, settings, FixedTariff(Decimal(1), Decimal(1)), SystemClock())
        by_library = 0

        async def library() -> ModelResponse:
            nonlocal by_library
            by_library += 1
            return await client._request(QUESTION)

        short_way = ChatCompletions(model, http)
        for _ in range(3):
            await short_way.ask(QUESTION, library)
    assert by_library == 1
    assert len(server.asked) == 3


async def test_many_sets_of_tools_are_not_all_kept(tmp_path: Path) -> None:
    async with provider(OPENAI) as (_, url), ModelHttp() as http:
        settings = settings_at("compatible", "x", url)
        model = model_of(settings, KEY, http)
        client = ModelClient(model, http, settings, FixedTariff(Decimal(1), Decimal(1)), SystemClock())
        short_way = client._short_way
        assert short_way is not None
        for number in range(_MOST_FORMS + 5):
            assert isinstance(await client.ask(replace(OTHER, tools=(one_tool(number),))), ModelAnswer)
        assert len(short_way._forms) == _MOST_FORMS


def one_tool(number: int) -> ModelTool:
    return replace(QUESTION.tools[0], name=f"tool_{number}")
