"""The grammar of a search, by recursive descent.

    query  := either*                      side by side means all of them
    either := term ("OR" term)*
    term   := "-" term | "(" query ")" | "{" query "}" | operator operand | word | phrase
    operand := word | phrase | "(" query ")"     inside brackets, bare words belong to the operator

A query that means nothing raises QueryError; no other error can come out of here.
"""

from __future__ import annotations

from postroom.mail.query.errors import OperandError, QueryError
from postroom.mail.query.nodes import EVERYTHING, And, Node, Not, Or, Text, TextField
from postroom.mail.query.operands import OPERATORS, Operand
from postroom.mail.query.strictness import check_operand, check_operator_name, check_quotes, check_word
from postroom.mail.query.tokens import Kind, Token, tokens

MAX_LENGTH = 20_000
MAX_DEPTH = 40
_KNOWN = frozenset(OPERATORS)
_STICKY = (Kind.WORD, Kind.PHRASE, Kind.OPERATOR)
_SOMETHING = "a word, a phrase or an operator"


def parse(query: str, now: int, *, strict: bool = False) -> Node:
    """What a query asks for; ages count back from `now`, in milliseconds."""
    if len(query) > MAX_LENGTH:
        raise QueryError(
            f"the query has {len(query)} characters", position=MAX_LENGTH + 1, expected=f"at most {MAX_LENGTH}"
        )
    stream = list(tokens(query, _KNOWN))
    if strict:
        check_quotes(stream)
    parser = _Parser(stream, now, strict)
    node = parser.query(_PLAIN, depth=0)
    parser.expect(Kind.END)
    return node


def _plain(text: str, now: int) -> Node:
    return Text(TextField.ANY, text)


_PLAIN = ("", _plain)
_Reading = tuple[str, Operand]
"""The operator whose words these are, and what it makes of them."""


class _Parser:
    def __init__(self, stream: list[Token], now: int, strict: bool) -> None:
        self._stream = stream
        self._at = 0
        self._now = now
        self._strict = strict

    @property
    def _next(self) -> Token:
        return self._stream[self._at]

    def _take(self) -> Token:
        token = self._next
        self._at += 1
        return token

    def expect(self, kind: Kind) -> None:
        if self._next.kind is not kind:
            wanted = "the end" if kind is Kind.END else repr(str(kind))
            problem = "the query ends" if self._next.kind is Kind.END else f"unexpected {_shown(self._next)}"
            raise _error(problem, self._next, wanted)
        self._at += 1 if kind is not Kind.END else 0

    def query(self, reading: _Reading, depth: int) -> Node:
        return _joined(And, self._parts(reading, depth, Kind.AND))

    def _any_of(self, reading: _Reading, depth: int) -> Node:
        return _joined(Or, self._parts(reading, depth, Kind.OR))

    def _parts(self, reading: _Reading, depth: int, joiner: Kind) -> list[Node]:
        """Everything up to a closing bracket; the joiner between two parts says what is understood anyway."""
        parts: list[Node] = []
        while self._next.kind not in (Kind.END, Kind.CLOSE, Kind.CLOSE_ANY):
            if self._next.kind is joiner:
                self._take()
            else:
                parts.append(self._either(reading, depth))
        return parts

    def _either(self, reading: _Reading, depth: int) -> Node:
        parts = [self._term(reading, depth)]
        while self._next.kind is Kind.OR:
            self._take()
            parts.append(self._term(reading, depth))
        return _joined(Or, parts)

    def _term(self, reading: _Reading, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _error("brackets stand too deep in each other", self._next, f"at most {MAX_DEPTH}")
        token = self._take()
        match token.kind:
            case Kind.MINUS:
                return Not(self._term(reading, depth + 1))
            case Kind.OPEN:
                return self._closed(self.query(reading, depth + 1), Kind.CLOSE)
            case Kind.OPEN_ANY:
                return self._closed(self._any_of(reading, depth + 1), Kind.CLOSE_ANY)
            case Kind.OPERATOR:
                return self._operand(token, depth)
            case Kind.WORD | Kind.PHRASE:
                if self._strict:
                    check_operator_name(token)
                return self._read(reading, token, token.text)
            case Kind.END | Kind.CLOSE | Kind.CLOSE_ANY | Kind.OR | Kind.AND:
                raise _error(f"nothing to search for before {_shown(token)}", token, _SOMETHING)

    def _operand(self, operator: Token, depth: int) -> Node:
        """What follows an operator at once; with nothing there the operator is ignored, as Gmail does."""
        reading = (operator.text, OPERATORS[operator.text])
        if not self._next.glued or self._next.kind in (Kind.CLOSE, Kind.CLOSE_ANY):
            if self._strict:
                raise _error(f"{operator.spelled} has nothing after it", self._next, "its value, without a space")
            return EVERYTHING
        if self._next.kind in (Kind.OPEN, Kind.OPEN_ANY):
            return self._term(reading, depth + 1)
        first = self._next
        return self._read(reading, first, self._glued_text())

    def _read(self, reading: _Reading, token: Token, text: str) -> Node:
        name, operand = reading
        try:
            if self._strict:
                check_operand(name, text)
            node = operand(text, self._now - self._now % 1_000)
        except OperandError as error:
            raise _error(error.problem, token, error.expected) from None
        if self._strict:
            check_word(token, node)
        return node

    def _glued_text(self) -> str:
        """`subject:re:hello` looks for `re:hello`: what sticks to an operand is part of it."""
        text = self._take().spelled
        while self._next.glued and self._next.kind in _STICKY:
            text += self._take().spelled
        return text

    def _closed(self, node: Node, kind: Kind) -> Node:
        self.expect(kind)
        return node


def _error(problem: str, token: Token, expected: str) -> QueryError:
    return QueryError(problem, position=token.start + 1, expected=expected)


def _shown(token: Token) -> str:
    return repr(token.text[:40]) if token.kind is not Kind.END else "the end"


def _joined(join: type[And] | type[Or], parts: list[Node]) -> Node:
    if not parts:
        return EVERYTHING
    return parts[0] if len(parts) == 1 else join(tuple(parts))
