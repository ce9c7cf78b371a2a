"""The grammar of a search, by recursive descent.

    query  := either*                      side by side means all of them
    either := term ("OR" term)*
    term   := "-" term | "(" query ")" | "{" query "}" | operator operand | word | phrase
    operand := word | phrase | "(" query ")"     inside brackets, bare words belong to the operator

A query that means nothing raises QueryError; no other error can come out of here.
"""

from __future__ import annotations

from postroom.gmail.sim.search.nodes import EVERYTHING, And, Node, Not, Or, Text, TextField
from postroom.gmail.sim.search.operands import OPERATORS, Operand, QueryError
from postroom.gmail.sim.search.tokens import Kind, Token, tokens

__all__ = ["QueryError", "parse"]

MAX_LENGTH = 20_000
MAX_DEPTH = 40
_KNOWN = frozenset(OPERATORS)
_STICKY = (Kind.WORD, Kind.PHRASE, Kind.OPERATOR)


def parse(query: str, now: int) -> Node:
    """What a query asks for; ages count back from `now`, in milliseconds."""
    if len(query) > MAX_LENGTH:
        raise QueryError(f"a query may have {MAX_LENGTH} characters, this one has {len(query)}")
    parser = _Parser(list(tokens(query, _KNOWN)), now)
    node = parser.query(_plain, depth=0)
    parser.expect(Kind.END)
    return node


def _plain(text: str, now: int) -> Node:
    return Text(TextField.ANY, text)


class _Parser:
    def __init__(self, stream: list[Token], now: int) -> None:
        self._stream = stream
        self._at = 0
        self._now = now

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
            raise QueryError(f"expected {wanted}, found {self._next.text[:40] or 'the end'!r}")
        self._at += 1 if kind is not Kind.END else 0

    def query(self, word: Operand, depth: int) -> Node:
        return _joined(And, self._parts(word, depth, Kind.AND))

    def _any_of(self, word: Operand, depth: int) -> Node:
        return _joined(Or, self._parts(word, depth, Kind.OR))

    def _parts(self, word: Operand, depth: int, joiner: Kind) -> list[Node]:
        """Everything up to a closing bracket; the joiner between two parts says what is understood anyway."""
        parts: list[Node] = []
        while self._next.kind not in (Kind.END, Kind.CLOSE, Kind.CLOSE_ANY):
            if self._next.kind is joiner:
                self._take()
            else:
                parts.append(self._either(word, depth))
        return parts

    def _either(self, word: Operand, depth: int) -> Node:
        parts = [self._term(word, depth)]
        while self._next.kind is Kind.OR:
            self._take()
            parts.append(self._term(word, depth))
        return _joined(Or, parts)

    def _term(self, word: Operand, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise QueryError(f"brackets may be {MAX_DEPTH} deep")
        token = self._take()
        match token.kind:
            case Kind.MINUS:
                return Not(self._term(word, depth + 1))
            case Kind.OPEN:
                return self._closed(self.query(word, depth + 1), Kind.CLOSE)
            case Kind.OPEN_ANY:
                return self._closed(self._any_of(word, depth + 1), Kind.CLOSE_ANY)
            case Kind.OPERATOR:
                return self._operand(OPERATORS[token.text], depth)
            case Kind.WORD | Kind.PHRASE:
                return word(token.text, self._now)
            case Kind.END | Kind.CLOSE | Kind.CLOSE_ANY | Kind.OR | Kind.AND:
                raise QueryError(f"something to search for is missing before {token.text or 'the end'!r}")

    def _operand(self, operator: Operand, depth: int) -> Node:
        """What follows an operator at once; with nothing there the operator is ignored, as Gmail does."""
        if not self._next.glued or self._next.kind in (Kind.CLOSE, Kind.CLOSE_ANY):
            return EVERYTHING
        if self._next.kind in (Kind.OPEN, Kind.OPEN_ANY):
            return self._term(operator, depth + 1)
        return operator(self._glued_text(), self._now)

    def _glued_text(self) -> str:
        """`subject:re:hello` looks for `re:hello`: what sticks to an operand is part of it."""
        text = self._take().spelled
        while self._next.glued and self._next.kind in _STICKY:
            text += self._take().spelled
        return text

    def _closed(self, node: Node, kind: Kind) -> Node:
        self.expect(kind)
        return node


def _joined(join: type[And] | type[Or], parts: list[Node]) -> Node:
    if not parts:
        return EVERYTHING
    return parts[0] if len(parts) == 1 else join(tuple(parts))
