"""What Gmail lets pass and a strict reader refuses, because it would search for something else than was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from postroom.mail.query.errors import OperandError, QueryError
from postroom.mail.query.nodes import Node, Text
from postroom.mail.query.operands import CATEGORIES, OPERATORS, STATES
from postroom.mail.query.tokens import Kind, Token

_OPERATOR = re.compile(r"([A-Za-z][A-Za-z0-9_]*):(?!//)")


def check_operator_name(token: Token) -> None:
    """`form:alice` is a slip of the pen and no word; a web address is one."""
    found = _OPERATOR.match(token.text) if token.kind is Kind.WORD else None
    if not found:
        return
    nearest = difflib.get_close_matches(found[1].lower(), OPERATORS, n=1)
    hint = f"{nearest[0]}:" if nearest else "an operator such as from:"
    raise QueryError(
        f"{found[1]}: is not an operator",
        position=token.start + 1,
        expected=f'{hint}, or quotes around it to search for it as it stands ("{token.text[:40]}")',
    )


def check_operand(operator: str, text: str) -> None:
    if operator == "is" and text.lower() not in STATES:
        raise OperandError(f"is:{text[:40]} is not known", f"one of {', '.join(sorted(STATES))}")
    if operator == "category" and text.lower() not in CATEGORIES:
        raise OperandError(f"category:{text[:40]} is not known", f"one of {', '.join(sorted(CATEGORIES))}")


def check_quotes(stream: Iterable[Token]) -> None:
    for token in stream:
        if not token.is_closed:
            raise QueryError("the quote is not closed", position=token.start + 1, expected='a second "')


def check_word(token: Token, node: Node) -> None:
    if isinstance(node, Text) and not any(character.isalnum() for character in node.words):
        raise QueryError(
            f"{node.words[:40]!r} has no letter or digit", position=token.start + 1, expected="something to look for"
        )
