"""The model's stand-in as others see it: over HTTP, as a process, and steered from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from postroom.sim.model.server import ModelSim, running_model
from tests.support.gmail_sim import plain_client

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "decide",
            "parameters": {
                "type": "object",
                "properties": {
                    "action": {"$ref": "#/$defs/action"},
                    "score": {"type": "integer", "minimum": 3, "maximum": 4},
                    "sure": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
                },
                "$defs": {"action": {"type": "string", "enum": ["archive", "none"]}},
            },
        },
    }
]


@asynccontextmanager
async def client_of(sim: ModelSim) -> AsyncIterator[httpx2.AsyncClient]:
    root = sim.url.removesuffix("/v1")
    async with plain_client(
        root, **{"Authorization": f"Bearer {sim.token}", "X-Sim-Control": sim.control_token}
    ) as http:
        yield http


def chat(content: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


async def test_a_tool_call_fits_its_schema_and_says_that_it_is_simulated() -> None:
    async with running_model(7) as sim, client_of(sim) as http:
        body = chat([{"type": "text", "text": "Hi"}], tools=TOOLS, tool_choice="required")  # type: ignore[arg-type]
        answers = [await http.post("/v1/chat/completions", json=body) for _ in range(2)]
    first, second = (answer.json() for answer in answers)
    assert answers[0].headers["x-postroom-simulated"] == "true"
    assert first["id"].startswith("simulated-")
    call = first["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call == second["choices"][0]["message"]["tool_calls"][0]["function"]
    arguments = json.loads(call["arguments"])
    assert arguments["action"] in ("archive", "none")
    assert arguments["score"] in (3, 4)
    assert arguments["tags"] == ["Simulated answer."] * 2
    usage = first["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 10


async def test_without_a_tool_it_talks_and_it_lists_its_models() -> None:
    async with running_model() as sim, client_of(sim) as http:
        said = (await http.post("/v1/chat/completions", json=chat())).json()["choices"][0]
        models = (await http.get("/v1/models")).json()
    assert said["message"]["content"].startswith("Simulated")
    assert said["finish_reason"] == "stop"
    assert [model["id"] for model in models["data"]] == ["simulated-small", "simulated-large"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "parse"),
        (b"[]", "object"),
        (b'{"model": "m"}', "messages"),
        (json.dumps(chat() | {"model": ""}).encode(), "model"),
        (json.dumps(chat(stream=True)).encode(), "stream"),
        (json.dumps(chat(max_tokens=0)).encode(), "max_tokens"),
        (json.dumps(chat(tools=[{"x": 1}])).encode(), "tools"),
    ],
)
async def test_a_wrong_request_is_refused_as_the_real_service_would(body: bytes, problem: str) -> None:
    async with running_model() as sim, client_of(sim) as http:
        answer = await http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert problem in answer.json()["error"]["message"]


async def test_keys_are_needed() -> None:
    async with running_model() as sim:
        async with plain_client(sim.url.removesuffix("/v1")) as stranger:
            refused = await stranger.post("/v1/chat/completions", json=chat())
            control = await stranger.post("/_sim/state")
        async with client_of(sim) as http:
            lost = await http.get("/v1/nowhere")
            unknown = await http.post("/_sim/nowhere")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert (control.status_code, lost.status_code, unknown.status_code) == (401, 404, 404)


async def test_answers_are_scripted_and_faults_armed_from_outside() -> None:
    async with running_model() as sim, client_of(sim) as http:

        async def told(path: str, value: Any) -> int:
            return (await http.post(f"/_sim/{path}", json=value)).status_code

        async def said(content: str = "Hello") -> Any:
            return await http.post("/v1/chat/completions", json=chat(content))

        assert await told("queue", {"answers": [{"text": "first", "input_tokens": 5, "output_tokens": 2}]}) == 200
        assert await told("scripts", {"pattern": "bank|doctor", "answer": {"text": "urgent"}, "times": 1}) == 200
        assert await told("faults", {"kind": "error", "code": 429, "retry_after_s": 3, "skip": 3, "times": 1}) == 200
        assert await told("scripts", {"pattern": "(", "answer": {}}) == 400
        assert await told("faults", {"kind": "explode"}) == 400
        answers = [await said(), await said("the doctor"), await said("the doctor"), await said(), await said()]
        texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers if answer.status_code == 200]
        assert texts[:2] == ["first", "urgent"]
        assert all(text.startswith("Simulated") for text in texts[2:])
        assert (answers[3].status_code, answers[3].headers["retry-after"]) == (429, "3")
        state = (await http.post("/_sim/state")).json()
        assert (state["requests"], state["answered"], state["faults"]) == (5, 4, {"error": 1})
        assert (await http.post("/_sim/prompts")).json()["prompts"][1] == "the doctor"
        assert await told("reset", {}) == 200
        assert (await http.post("/_sim/state")).json()["requests"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_where_it_is_serves_and_ends_cleanly(number: signal.Signals) -> None:
    command = [sys.executable, "-c", "from postroom.cli.sim import app; app()", "model", "--seed", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = json.loads(process.stdout.readline())
            assert set(ready) == {"url", "token", "control_token"}
            async with plain_client(ready["url"], Authorization=f"Bearer {ready['token']}") as http:
                assert (await http.get(f"{ready['url']}/models")).status_code == 200
            process.send_signal(number)
            rest, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, rest, errors) == (0, "", "")
