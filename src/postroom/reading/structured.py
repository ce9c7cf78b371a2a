"""TOML, YAML and JSON from people and strangers: plain values, or ValueError and nothing else, in linear time.

What a parser needs more than linear time for is refused: keys of many parts, values nested deep, YAML's aliases where a
few lines of them stand for billions of values, and its long numbers of base sixty.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Hashable
from typing import Any

import yaml

MOST_PARTS = 32
"""Of a key `a.b.c`; what a parser does for each grows with their number."""
DEEPEST = 60
LONGEST_NUMBER = 100
MOST_VALUES = 200_000
"""Of a YAML file, its aliases written out."""
LARGEST_YAML = 1 << 20
_QUOTED = re.compile(r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|\'[^\'\n]*+\'')
_MANY_PARTS = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_PARTS},}}")


def load_toml(text: str) -> dict[str, Any]:
    if _MANY_PARTS.search(_QUOTED.sub("q", text)):
        raise ValueError(f"a key has more than {MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def load_json(text: str) -> object:
    """No key may stand in an object twice."""
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def load_yaml(text: str) -> object:
    """No key may stand in a mapping twice."""
    if len(text) > LARGEST_YAML:
        raise ValueError(f"YAML is read up to {LARGEST_YAML:,} characters; use TOML for more")
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 (a safe loader, made stricter)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (yaml.YAMLError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        # PyYAML trusts explicit tags: `!!timestamp x` is an AttributeError.
        raise ValueError(str(error)) from None


class _StrictLoader(yaml.SafeLoader):
    """YAML with its plain types only, in which no key stands twice: the first would be lost without a word."""

    _depth = 0

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if _values(node, {}) > MOST_VALUES:
            raise yaml.composer.ComposerError(None, None, f"its aliases stand for more than {MOST_VALUES:,} values")
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self._depth >= DEEPEST:
            raise yaml.composer.ComposerError(None, None, "it is nested too deep")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        if len(node.value) > LONGEST_NUMBER:
            raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
        read = self.construct_yaml_int if node.tag.endswith(":int") else self.construct_yaml_float
        number: int | float = read(node)
        return number


for _kind in ("int", "float"):
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _StrictLoader.construct_number)


def _values(node: Any, known: dict[int, int]) -> int:
    """How many values this one stands for, its aliases written out; one that holds itself counts once."""
    if id(node) not in known:
        known[id(node)] = 1
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for each in inner for part in (each if isinstance(each, tuple) else (each,)))
        known[id(node)] += sum(_values(part, known) for part in parts)
    return known[id(node)]


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} stands there twice")
        found[key] = value
    return found
