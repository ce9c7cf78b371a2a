"""The part of OpenAI's chat completions that clients use: requests read leniently, answers in their exact form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Json = dict[str, Any]


class BadRequest(Exception):
    """A request that the real service would refuse; the message is for the caller."""


@dataclass(frozen=True)
class ChatTool:
    name: str
    parameters: Json


@dataclass(frozen=True)
class ChatRequest:
    model: str
    messages: tuple[Json, ...]
    tools: tuple[ChatTool, ...]
    tool_choice: Any
    max_tokens: int | None
    size: int
    """Characters of everything that counts as input."""

    @cached_property
    def prompt(self) -> str:
        """All that was said, one message after the other."""
        return "\n".join(_text(message.get("content")) for message in self.messages)

    @property
    def callable_tools(self) -> tuple[ChatTool, ...]:
        """Those that may be called: the one named by the choice, else all, unless none is wanted."""
        if self.tool_choice == "none":
            return ()
        if isinstance(self.tool_choice, dict):
            name = self.tool_choice.get("function", {}).get("name")
            return tuple(tool for tool in self.tools if tool.name == name)
        return self.tools


def read_request(body: bytes) -> ChatRequest:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("We could not parse the JSON body of your request.") from None
    if not isinstance(value, dict):
        raise BadRequest("The body of the request must be an object.")
    if value.get("stream"):
        raise BadRequest("This stand-in does not stream; leave `stream` out.")
    messages, model = value.get("messages"), value.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("you must provide a model parameter")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise BadRequest("Invalid 'messages': expected an array with at least one message.")
    tools = value.get("tools") or []
    limit = value.get("max_completion_tokens", value.get("max_tokens"))
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BadRequest("Invalid 'max_tokens': expected a positive integer.")
    size = len(json.dumps([messages, tools], ensure_ascii=False))
    return ChatRequest(model, tuple(messages), tuple(map(_tool, tools)), value.get("tool_choice", "auto"), limit, size)


def _tool(value: Any) -> ChatTool:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequest("Invalid 'tools': expected functions with a name.")
    return ChatTool(function["name"], function.get("parameters") or {})


def _text(content: Any) -> str:
    """A message's words, whether they come as one text or in parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""


@dataclass(frozen=True)
class Completion:
    """An answer, before it is written as the API's JSON."""

    id: str
    created: int
    model: str
    message: Json
    finish_reason: str
    input_tokens: int
    output_tokens: int

    def as_json(self) -> Json:
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": "postroom-simulated",
            "choices": [
                {"index": 0, "message": self.message, "finish_reason": self.finish_reason, "logprobs": None},
            ],
            "usage": {
                "prompt_tokens": self.input_tokens,
                "completion_tokens": self.output_tokens,
                "total_tokens": self.input_tokens + self.output_tokens,
            },
        }


def assistant_message(*calls: tuple[str, str, str], text: str | None = None) -> Json:
    """What the model said: a text, or calls (each with its id, the tool, its arguments)."""
    message: Json = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    return message


def error_body(message: str, kind: str, code: str | None = None) -> Json:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
