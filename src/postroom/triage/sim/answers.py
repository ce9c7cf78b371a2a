"""Answers made up from the seed and the prompt: the same question gets the same answer, and each says it is none."""

from __future__ import annotations

import hashlib
import json
import random
import re
from typing import Any

from postroom.triage.sim.chat import ChatRequest, Tool
from postroom.triage.sim.script import Answer

MARK = "Simulated"
_DEEPEST = 5
_BULK = re.compile(r'"list-unsubscribe":"|newsletter|unsubscribe', re.IGNORECASE)
_BILL = re.compile(r"invoice|receipt|order|booking|statement", re.IGNORECASE)


def invent(request: ChatRequest, seed: int) -> Answer:
    """A call of one of the tools that were offered, with arguments that fit its schema; else a text."""
    dice = random.Random(hashlib.sha256(f"{seed}:{request.prompt}".encode("utf-8", "replace")).digest())  # noqa: S311
    tools = {tool.name: tool for tool in request.callable_tools}
    if not tools:
        return Answer(text=f"{MARK}: no model was asked; this is made up.")
    name = _chosen(request.prompt, list(tools), dice)
    return Answer(tool=name, arguments=_object(tools[name], dice) | _manner(tools[name], dice))


def _chosen(prompt: str, names: list[str], dice: random.Random) -> str:
    """What somebody might do with such mail: newsletters leave the inbox, bills are labelled, most mail stays."""
    if "none" not in names:
        return names[0]
    mail = prompt.rpartition("<mail>")[2]
    likely = ("archive", "mark_read") if _BULK.search(mail) else ("apply_label", "star") if _BILL.search(mail) else ()
    fitting = [name for name in likely if name in names]
    return dice.choice(fitting) if fitting and dice.random() < 0.8 else "none"


def _manner(tool: Tool, dice: random.Random) -> dict[str, Any]:
    """A model that is fairly sure of itself and asks for approval now and then, where it may say so."""
    said = {"confidence": round(dice.uniform(0.6, 1), 2), "needs_approval": dice.random() < 0.05}
    return {name: value for name, value in said.items() if name in tool.parameters.get("properties", {})}


def _object(tool: Tool, dice: random.Random) -> dict[str, Any]:
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


def arguments_text(answer: Answer) -> str:
    if isinstance(answer.arguments, str):
        return answer.arguments
    return json.dumps(answer.arguments or {}, ensure_ascii=False)
