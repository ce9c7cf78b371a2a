"""Every provider is sent all tools, has to call one of them, and only one; its answer is read the same way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from postroom.domain.clock import SystemClock
from postroom.domain.model_costs import MOST_REQUEST_BYTES
from postroom.settings import ModelSettings
from postroom.sim.serving import HOST, Receive, Scope, Send, serving
from postroom.triage.choices import ToolOffer, read_answer
from postroom.triage.model import open_model
from postroom.triage.prompt import Briefing, question_about
from postroom.triage.questions import ModelAnswer, ModelQuestion
from postroom.vault import Vault
from postroom.webserver import listening
from tests.support.injections import Injection

OFFER = ToolOffer(labels=("Receipts",), on_message=frozenset({"INBOX", "UNREAD"}), forward_to=("books@example.org",))
QUESTION: ModelQuestion = question_about(Injection("honest", "The bill.").mail(), Briefing(offer=OFFER))
ARGUMENTS = {"label": "Receipts", "confidence": 0.9, "reason": "A bill.", "needs_approval": False}
OPENAI = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5-mini",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "t1",
                        "type": "function",
                        "function": {"name": "apply_label", "arguments": json.dumps(ARGUMENTS)},
                    }
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}
ANTHROPIC = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "model": "claude-haiku-4-5",
    "content": [{"type": "tool_use", "id": "t1", "name": "apply_label", "input": ARGUMENTS}],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "output_tokens": 5},
}


@dataclass
class Provider:
    """Answers every request with the same words, and keeps what it was asked."""

    answer: dict[str, Any]
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        self.asked.append(json.loads(body))
        said = json.dumps(self.answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(said))]
        await send({"type": "http.response.start", "status": 200, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": said, "more_body": False})


@asynccontextmanager
async def provider(answer: dict[str, Any]) -> AsyncIterator[tuple[Provider, str]]:
    made, listener = Provider(answer), listening(HOST, 0)
    async with serving(made, listener, before_stop=lambda: None):
        yield made, f"http://{HOST}:{listener.getsockname()[1]}"


async def ask(kind: str, name: str, answer: dict[str, Any], folder: Path) -> tuple[dict[str, Any], ModelAnswer]:
    async with provider(answer) as (server, url):
        base = url if kind == "anthropic" else f"{url}/v1"
        key = SecretStr("sk-nobody-knows-this-key")
        prices = {"input_price": 1, "output_price": 1}
        settings = ModelSettings(provider=kind, name=name, base_url=base, api_key=key, **prices)
        async with open_model(settings, Vault(folder), SystemClock()) as model:
            assert model is not None
            found = await model.ask(QUESTION)
    assert isinstance(found, ModelAnswer)
    [request] = server.asked
    return request, found


@pytest.mark.req("JB-10")
@pytest.mark.parametrize(("kind", "name"), [("openai", "gpt-5-mini"), ("compatible", "some-local-model")])
async def test_openai_and_its_likes_must_call_one_of_the_tools(tmp_path: Path, kind: str, name: str) -> None:
    request, found = await ask(kind, name, OPENAI, tmp_path)
    assert (request["tool_choice"], request["parallel_tool_calls"]) == ("required", False)
    sent = {tool["function"]["name"]: tool["function"] for tool in request["tools"]}
    assert list(sent) == [tool.name for tool in QUESTION.tools]
    assert sent["apply_label"]["parameters"]["properties"]["label"]["enum"] == ["Receipts"]
    assert sent["forward"]["parameters"]["properties"]["to"]["items"]["enum"] == ["books@example.org"]
    choice = read_answer(found, OFFER)
    assert choice.wanted is not None
    assert choice.wanted.to_json() == {"type": "apply_label", "label": "Receipts"}


@pytest.mark.req("JB-10")
async def test_anthropic_must_call_one_of_the_tools(tmp_path: Path) -> None:
    request, found = await ask("anthropic", "claude-haiku-4-5", ANTHROPIC, tmp_path)
    assert request["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    sent = {tool["name"]: tool for tool in request["tools"]}
    assert list(sent) == [tool.name for tool in QUESTION.tools]
    assert sent["apply_label"]["input_schema"]["properties"]["label"]["enum"] == ["Receipts"]
    choice = read_answer(found, OFFER)
    assert (choice.confidence, choice.reason) == (0.9, "A bill.")


@pytest.mark.req("BF-9", "JB-10")
@pytest.mark.parametrize(
    ("kind", "name", "answer"),
    [("openai", "gpt-5-mini", OPENAI), ("anthropic", "claude-haiku-4-5", ANTHROPIC), ("compatible", "x", OPENAI)],
)
async def test_what_is_sent_is_no_longer_than_what_was_reserved(
    tmp_path: Path, kind: str, name: str, answer: dict[str, Any]
) -> None:
    """The request as a whole, with all that the provider's library adds to it."""
    request, _ = await ask(kind, name, answer, tmp_path)
    assert len(json.dumps(request, ensure_ascii=False).encode()) < MOST_REQUEST_BYTES
