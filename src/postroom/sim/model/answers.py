"""What the stand-in is asked and what it answers: the part of OpenAI's chat completions that clients use, with requests
read leniently and answers in their exact form; what a test scripted, or an answer made up from the seed and the prompt;
and its faults.

The same question gets the same answer, and a made-up answer says that it is one.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from postroom.mail.patterns import LONGEST_TEXT, Pattern, any_of

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


ModelFaultKind = Literal[
    "error",
    "slow",
    "hang",
    "drop",
    "truncate",
    "malformed_json",
    "malformed_tool_call",
    "unknown_tool",
    "two_calls",
    "text",
    "empty",
]


class _Instruction(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptedAnswer(_Instruction):
    """An answer word for word: a call of a tool, or a text."""

    tool: str | None = Field(None, description="the tool to call; unset with `arguments`: the first that was offered")
    arguments: dict[str, Any] | str | None = Field(None, description="a text goes out as it is, JSON or not")
    text: str | None = None
    input_tokens: int | None = Field(None, ge=0)
    output_tokens: int | None = Field(None, ge=0)


class Script(_Instruction):
    """Prompts in which the pattern is found get this answer, for so many times or always."""

    pattern: str = Field(min_length=1, max_length=LONGEST_TEXT)
    answer: ScriptedAnswer
    times: int | None = Field(None, ge=1)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        any_of([pattern], "pattern")
        return pattern


class ModelFault(_Instruction):
    """What goes wrong, and which requests it hits: all, unless a pattern, a start, a chance or a number say less."""

    kind: ModelFaultKind
    code: int = Field(503, ge=400, le=599)
    message: str = "The model is overloaded."
    retry_after_s: int | None = Field(None, ge=0)
    seconds: float = Field(0.0, ge=0, le=3600)
    pattern: str | None = None
    skip: int = Field(0, ge=0)
    times: int | None = Field(None, ge=1)
    probability: float = Field(1.0, ge=0, le=1)
    seed: int = 0


@dataclass
class _Armed:
    fault: ModelFault
    pattern: Pattern | None
    dice: random.Random
    seen: int = 0
    hits: int = 0

    def strikes(self, prompt: str) -> bool:
        fault = self.fault
        if self.pattern is not None and not self.pattern.found_in(prompt):
            return False
        self.seen += 1
        if self.seen <= fault.skip or (fault.times is not None and self.hits >= fault.times):
            return False
        if fault.probability < 1 and self.dice.random() >= fault.probability:
            return False
        self.hits += 1
        return True


@dataclass
class _Scripted:
    script: Script
    pattern: Pattern
    used: int = 0


@dataclass
class ScriptQueue:
    """The scripts, queued answers and faults of a stand-in; they stay in force until cleared."""

    queue: deque[ScriptedAnswer] = field(default_factory=deque)
    _scripts: list[_Scripted] = field(default_factory=list)
    _faults: list[_Armed] = field(default_factory=list)

    def add_script(self, script: Script) -> None:
        self._scripts.append(_Scripted(script, any_of([script.pattern], "pattern")))

    def add_fault(self, fault: ModelFault) -> None:
        pattern = None if fault.pattern is None else any_of([fault.pattern], "pattern")
        self._faults.append(_Armed(fault, pattern, random.Random(fault.seed)))  # noqa: S311 - repeatable, no secret

    def clear(self) -> None:
        self.queue.clear()
        self._scripts.clear()
        self._faults.clear()

    def clear_faults(self) -> None:
        self._faults.clear()

    def fault_for(self, prompt: str) -> ModelFault | None:
        return next((armed.fault for armed in self._faults if armed.strikes(prompt)), None)

    def answer_for(self, prompt: str) -> ScriptedAnswer | None:
        """The next of the queue, else the first script that fits; None leaves it to the stand-in."""
        if self.queue:
            return self.queue.popleft()
        for scripted in self._scripts:
            if scripted.script.times is not None and scripted.used >= scripted.script.times:
                continue
            if scripted.pattern.found_in(prompt):
                scripted.used += 1
                return scripted.script.answer
        return None


MARK = "Simulated"
ANSWER = "answer"
"""The tool for an answer in sentences that quote mail, which stands in lines of JSON between `<mails>` fences."""
_FENCE = "<mails>\n"
_MOST_QUOTED, _QUOTED_WORDS = 2, 20
_DEEPEST = 5
_BULK = re.compile(r'"list-unsubscribe":"|newsletter|unsubscribe', re.IGNORECASE)
_BILL = re.compile(r"invoice|receipt|order|booking|statement", re.IGNORECASE)


def invent(request: ChatRequest, seed: int) -> ScriptedAnswer:
    """A call of one of the tools that were offered, with arguments that fit its schema; else a text."""
    dice = random.Random(hashlib.sha256(f"{seed}:{request.prompt}".encode("utf-8", "replace")).digest())  # noqa: S311
    tools = {tool.name: tool for tool in request.callable_tools}
    if not tools:
        return ScriptedAnswer(text=f"{MARK}: no model was asked; this is made up.")
    if ANSWER in tools and _FENCE in request.prompt:
        return ScriptedAnswer(tool=ANSWER, arguments={"sentences": _quoting(request.prompt)})
    name = _chosen(request.prompt, list(tools), dice)
    return ScriptedAnswer(tool=name, arguments=_object(tools[name], dice) | _manner(tools[name], dice))


def _quoting(prompt: str) -> list[dict[str, str]]:
    """Of the first messages each the beginning, word for word: whether it answers the question, no one has judged."""
    lines = prompt.rpartition(_FENCE)[2].partition("\n</mails>")[0].splitlines()
    said = f"{MARK}, without judging it: a message that was found says this."
    quotes = [(mail["id"], _beginning(mail)) for mail in map(json.loads, lines[:_MOST_QUOTED])]
    return [{"text": said, "message": name, "quote": quote} for name, quote in quotes]


def _beginning(mail: dict[str, Any]) -> str:
    words = (mail["text"].partition(" … ")[0] or mail["subject"]).split()
    return " ".join(words[:_QUOTED_WORDS])


def _chosen(prompt: str, names: list[str], dice: random.Random) -> str:
    """A plausible choice: newsletters leave the inbox, bills are labelled, most mail stays."""
    if "none" not in names:
        return names[0]
    mail = prompt.rpartition("<mail>")[2]
    likely = ("archive", "mark_read") if _BULK.search(mail) else ("apply_label", "star") if _BILL.search(mail) else ()
    fitting = [name for name in likely if name in names]
    return dice.choice(fitting) if fitting and dice.random() < 0.8 else "none"


def _manner(tool: ChatTool, dice: random.Random) -> dict[str, Any]:
    """A model that is fairly sure of itself and asks for approval now and then, where it may say so."""
    said = {"confidence": round(dice.uniform(0.6, 1), 2), "needs_approval": dice.random() < 0.05}
    return {name: value for name, value in said.items() if name in tool.parameters.get("properties", {})}


def _object(tool: ChatTool, dice: random.Random) -> dict[str, Any]:
    value = _value(tool.parameters, tool.parameters, dice, _DEEPEST)
    return value if isinstance(value, dict) else {}


def _value(schema: dict[str, Any], root: dict[str, Any], dice: random.Random, depth: int) -> Any:
    schema = _resolved(schema, root)
    if depth == 0:
        return None
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return dice.choice(schema["enum"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _value(options[0], root, dice, depth - 1)
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties: dict[str, Any] = schema.get("properties", {})
        return {name: _value(part, root, dice, depth - 1) for name, part in properties.items()}
    if kind == "array":
        return [_value(schema.get("items", {}), root, dice, depth - 1) for _ in range(schema.get("minItems", 0))]
    return _scalar(kind, schema, dice)


def _scalar(kind: str, schema: dict[str, Any], dice: random.Random) -> Any:
    match kind:
        case "number":
            return round(dice.uniform(schema.get("minimum", 0), schema.get("maximum", 1)), 3)
        case "integer":
            return dice.randint(schema.get("minimum", 0), schema.get("maximum", 10))
        case "boolean":
            return dice.random() < 0.5
        case "string":
            return f"{MARK} answer."[: schema.get("maxLength", 200)]
        case _:
            return None


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    if not reference.startswith("#/"):
        return schema
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}


def tokens_in(text: str) -> int:
    """About what a tokenizer would count: four characters each, never none."""
    return max(1, -(-len(text) // 4))


def arguments_text(answer: ScriptedAnswer) -> str:
    if isinstance(answer.arguments, str):
        return answer.arguments
    return json.dumps(answer.arguments or {}, ensure_ascii=False)
