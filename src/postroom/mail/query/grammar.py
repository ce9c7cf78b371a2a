"""The grammar of a search, by recursive descent, from its tokens; `strict` refuses what is probably a mistake.

    query  := either*                      side by side means all of them
    either := term ("OR" term)*
    term   := "-" term | "(" query ")" | "{" query "}" | operator operand | word | phrase
    operand := word | phrase | "(" query ")"     inside brackets, bare words belong to the operator

The first half says what each operator makes of its operand: dates, ages, sizes, places, words in a header. A query that
means nothing raises QueryError; no other error can come out of here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from postroom.domain.errors import BadInput
from postroom.mail.query import nodes
from postroom.mail.query.nodes import EVERYTHING, And, Node, Not, Or, Text, TextField


class QueryError(BadInput):
    """A query that means nothing: `position` is the column of the mistake, counted from 1."""

    def __init__(self, problem: str, *, position: int, expected: str) -> None:
        super().__init__("query", f"{problem} at column {position}; expected {expected}")
        self.reason = problem
        self.position = position
        self.expected = expected


class OperandError(Exception):
    """An operator cannot use its operand; the grammar adds where that stands."""

    def __init__(self, problem: str, expected: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected


DAY_MS = 86_400_000
_UNIT_DAYS = {"d": 1, "m": 30, "y": 365}
_UNIT_BYTES = {"": 1, "k": 1024, "m": 1024 * 1024}
_PLACES = {"draft": "DRAFT", "drafts": "DRAFT", "sent": "SENT", "inbox": "INBOX", "spam": "SPAM", "trash": "TRASH"}
_STATES = {"unread": "UNREAD", "starred": "STARRED", "important": "IMPORTANT"}
STATES = frozenset({*_STATES, *_PLACES, "read"})
CATEGORIES = frozenset({"primary", "social", "promotions", "updates", "forums", "reservations", "purchases"})
_KEY = re.compile(r"[0-9A-Za-z]{1,80}")
_YEAR_DIGITS = 4  # so many digits are a year, as people write it; any other number is seconds
_MAX_EPOCH_S = 253_402_300_799  # the last second of the year 9999, the last that a datetime can hold


Operand = Callable[[str, int], nodes.Node]


_YEAR_ALONE = re.compile(
    r"""("[^"]*"?)|(?<![^\s(){}-])((?:after|newer|before|older):[0-9]{4})(?![^\s(){}])""", re.IGNORECASE
)


def with_whole_dates(query: str) -> str:
    """`after:2025` as `after:2025/01/01`, for a mailbox that may take a bare number for seconds; phrases stay."""
    return _YEAR_ALONE.sub(lambda found: found[1] or f"{found[2]}/01/01", query)


def _date_ms(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) != _YEAR_DIGITS:
        seconds = int(text[:20])
        if seconds > _MAX_EPOCH_S:
            raise OperandError(f"{text[:40]} is later than any date", "at most the year 9999")
        return seconds * 1000
    for pattern in ("%Y/%m/%d", "%Y-%m-%d", "%Y"):
        try:
            return int(datetime.strptime(text, pattern).replace(tzinfo=UTC).timestamp()) * 1000
        except ValueError:
            continue
    raise OperandError(f"{text[:40]!r} is not a date", "YYYY, YYYY/MM/DD or seconds since 1970")


def _age_ms(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,5})([dmy])", text.lower())
    if not found:
        raise OperandError(f"{text[:40]!r} is not an age", "for example 3d, 2m or 1y")
    return int(found[1]) * _UNIT_DAYS[found[2]] * DAY_MS


def _ago(now: int, text: str) -> int:
    return max(now - _age_ms(text), 0)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([km]?)b?", text.lower())
    if not found:
        raise OperandError(f"{text[:40]!r} is not a size", "for example 500000, 200K or 5M")
    return int(found[1]) * _UNIT_BYTES[found[2]]


def _words_in(field: nodes.TextField) -> Operand:
    return lambda text, now: nodes.Text(field, text) if text else nodes.EVERYTHING


def _place(text: str, now: int) -> nodes.Node:
    name = text.lower()
    if name in ("anywhere", "all"):
        return nodes.Anywhere()
    return _state(text, now) if name in _STATES or name == "read" else nodes.Labelled(_PLACES.get(name, text))


def _state(text: str, now: int) -> nodes.Node:
    name = text.lower()
    if name == "read":
        return nodes.Not(nodes.Labelled("UNREAD"))
    return nodes.Labelled(_STATES.get(name) or _PLACES.get(name, text))


def _category(text: str, now: int) -> nodes.Node:
    name = text.lower()
    return nodes.Labelled("CATEGORY_" + ("PERSONAL" if name == "primary" else name.upper()))


def _has(text: str, now: int) -> nodes.Node:
    match text.lower():
        case "attachment":
            return nodes.HasAttachment()
        case "userlabels":
            return nodes.HasUserLabel()
        case "nouserlabels":
            return nodes.Not(nodes.HasUserLabel())
        case "conversation":
            return nodes.HasConversation()
        case other:
            known = "attachment, conversation, userlabels or nouserlabels"
            raise OperandError(f"has:{other[:40]} is not known", known)


def _conversation(text: str, now: int) -> nodes.Node:
    return nodes.InConversation(text) if text else nodes.EVERYTHING


def _similar(text: str, now: int) -> nodes.Node:
    if not _KEY.fullmatch(text):
        raise OperandError(f"{text[:40]!r} is not the key of a message", "a key as search and lists print it")
    return nodes.Similar(text)


OPERATORS: Mapping[str, Operand] = {
    "from": _words_in(nodes.TextField.FROM),
    "to": _words_in(nodes.TextField.TO),
    "cc": _words_in(nodes.TextField.CC),
    "bcc": _words_in(nodes.TextField.BCC),
    "subject": _words_in(nodes.TextField.SUBJECT),
    "list": _words_in(nodes.TextField.LIST),
    "filename": _words_in(nodes.TextField.FILENAME),
    "attachment": _words_in(nodes.TextField.ATTACHMENT),
    "in": _place,
    "is": _state,
    "label": _place,
    "category": _category,
    "has": _has,
    "after": lambda text, now: nodes.Received(start=_date_ms(text)),
    "newer": lambda text, now: nodes.Received(start=_date_ms(text)),
    "before": lambda text, now: nodes.Received(end=_date_ms(text)),
    "older": lambda text, now: nodes.Received(end=_date_ms(text)),
    "older_than": lambda text, now: nodes.Received(end=_ago(now, text)),
    "newer_than": lambda text, now: nodes.Received(start=_ago(now, text)),
    "larger": lambda text, now: nodes.Size(over=_bytes(text)),
    "size": lambda text, now: nodes.Size(over=_bytes(text)),
    "smaller": lambda text, now: nodes.Size(under=_bytes(text)),
    "thread": _conversation,
    "similar": _similar,
    "rfc822msgid": lambda text, now: nodes.MessageId(text.strip("<>")),
}


class TokenKind(StrEnum):
    OPEN = "("
    CLOSE = ")"
    OPEN_ANY = "{"
    CLOSE_ANY = "}"
    MINUS = "-"
    OR = "OR"
    AND = "AND"
    OPERATOR = "operator"
    """`from:` and the like; its operand follows at once."""
    WORD = "word"
    PHRASE = "phrase"
    END = "end"


@dataclass(frozen=True, slots=True)
class QueryToken:
    kind: TokenKind
    text: str
    glued: bool
    """No space before it: an operand belongs to its operator only so."""
    start: int
    """Where it begins in the query, counted from 0."""
    is_closed: bool = True
    """False for a phrase whose second quote is missing."""

    @property
    def spelled(self) -> str:
        return f"{self.text}:" if self.kind is TokenKind.OPERATOR else self.text


_PATTERN = re.compile(
    r"""(?P<space>\s+)
      | (?P<bracket>[(){}])
      | "(?P<phrase>[^"]*)(?:"|$)
      | (?P<minus>-(?=[^\s-]))
      | (?P<operator>[A-Za-z][A-Za-z0-9_]*):
      | (?P<word>[^\s(){}"]+)
    """,
    re.VERBOSE,
)


_WORD = re.compile(r'(?P<word>[^\s(){}"]+)')


def tokens(query: str, operators: frozenset[str]) -> Iterator[QueryToken]:
    """The tokens of a query, always ended by one END. A colon after an unknown word does not make an operator."""
    position, before = 0, "space"
    while found := _PATTERN.match(query, position):
        kind = str(found.lastgroup)
        is_unknown = kind == "operator" and found[kind].lower() not in operators
        is_hyphen = kind == "minus" and before not in ("space", "bracket", "minus")
        if (is_unknown or is_hyphen) and (word := _WORD.match(query, position)):
            found, kind = word, "word"
        position = found.end()
        if kind != "space":
            yield _token(kind, found, glued=before != "space")
        before = kind
    yield QueryToken(TokenKind.END, "", False, position)


def _token(group: str, found: re.Match[str], glued: bool) -> QueryToken:
    text, start = found[group], found.start()
    if group == "bracket":
        return QueryToken(TokenKind(text), text, glued, start)
    if group == "phrase":
        return QueryToken(TokenKind.PHRASE, text, glued, start, is_closed=len(found[0]) == len(text) + 2)
    if group == "word" and text in ("OR", "|"):
        return QueryToken(TokenKind.OR, text, glued, start)
    if group == "word" and text == "AND":
        return QueryToken(TokenKind.AND, text, glued, start)
    if group == "operator":
        return QueryToken(TokenKind.OPERATOR, text.lower(), glued, start)
    return QueryToken(TokenKind(group) if group != "minus" else TokenKind.MINUS, text, glued, start)


_OPERATOR = re.compile(r"([A-Za-z][A-Za-z0-9_]*):(?!//)")


def check_operator_name(token: QueryToken) -> None:
    """`form:alice` is a slip of the pen and no word; a web address is one."""
    found = _OPERATOR.match(token.text) if token.kind is TokenKind.WORD else None
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


def check_quotes(stream: Iterable[QueryToken]) -> None:
    for token in stream:
        if not token.is_closed:
            raise QueryError("the quote is not closed", position=token.start + 1, expected='a second "')


def check_word(token: QueryToken, node: Node) -> None:
    if isinstance(node, Text) and not any(character.isalnum() for character in node.words):
        raise QueryError(
            f"{node.words[:40]!r} has no letter or digit", position=token.start + 1, expected="something to look for"
        )


MAX_LENGTH = 20_000
MAX_DEPTH = 40
_KNOWN = frozenset(OPERATORS)
_STICKY = (TokenKind.WORD, TokenKind.PHRASE, TokenKind.OPERATOR)
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
    parser.expect(TokenKind.END)
    return node


def _plain(text: str, now: int) -> Node:
    return Text(TextField.ANY, text)


_PLAIN = ("", _plain)
_Reading = tuple[str, Operand]
"""The operator whose words these are, and what it makes of them."""


class _Parser:
    def __init__(self, stream: list[QueryToken], now: int, strict: bool) -> None:
        self._stream = stream
        self._at = 0
        self._now = now
        self._strict = strict

    @property
    def _next(self) -> QueryToken:
        return self._stream[self._at]

    def _take(self) -> QueryToken:
        token = self._next
        self._at += 1
        return token

    def expect(self, kind: TokenKind) -> None:
        if self._next.kind is not kind:
            wanted = "the end" if kind is TokenKind.END else repr(str(kind))
            problem = "the query ends" if self._next.kind is TokenKind.END else f"unexpected {_shown(self._next)}"
            raise _error(problem, self._next, wanted)
        self._at += 1 if kind is not TokenKind.END else 0

    def query(self, reading: _Reading, depth: int) -> Node:
        return _joined(And, self._parts(reading, depth, TokenKind.AND))

    def _any_of(self, reading: _Reading, depth: int) -> Node:
        return _joined(Or, self._parts(reading, depth, TokenKind.OR))

    def _parts(self, reading: _Reading, depth: int, joiner: TokenKind) -> list[Node]:
        """Everything up to a closing bracket; the joiner between two parts says what is understood anyway."""
        parts: list[Node] = []
        while self._next.kind not in (TokenKind.END, TokenKind.CLOSE, TokenKind.CLOSE_ANY):
            if self._next.kind is joiner:
                self._take()
            else:
                parts.append(self._either(reading, depth))
        return parts

    def _either(self, reading: _Reading, depth: int) -> Node:
        parts = [self._term(reading, depth)]
        while self._next.kind is TokenKind.OR:
            self._take()
            parts.append(self._term(reading, depth))
        return _joined(Or, parts)

    def _term(self, reading: _Reading, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _error("brackets stand too deep in each other", self._next, f"at most {MAX_DEPTH}")
        token = self._take()
        match token.kind:
            case TokenKind.MINUS:
                return Not(self._term(reading, depth + 1))
            case TokenKind.OPEN:
                return self._closed(self.query(reading, depth + 1), TokenKind.CLOSE)
            case TokenKind.OPEN_ANY:
                return self._closed(self._any_of(reading, depth + 1), TokenKind.CLOSE_ANY)
            case TokenKind.OPERATOR:
                return self._operand(token, depth)
            case TokenKind.WORD | TokenKind.PHRASE:
                if self._strict:
                    check_operator_name(token)
                return self._read(reading, token, token.text)
            case TokenKind.END | TokenKind.CLOSE | TokenKind.CLOSE_ANY | TokenKind.OR | TokenKind.AND:
                raise _error(f"nothing to search for before {_shown(token)}", token, _SOMETHING)

    def _operand(self, operator: QueryToken, depth: int) -> Node:
        """What follows an operator at once; with nothing there the operator is ignored, as Gmail does."""
        reading = (operator.text, OPERATORS[operator.text])
        if not self._next.glued or self._next.kind in (TokenKind.CLOSE, TokenKind.CLOSE_ANY):
            if self._strict:
                raise _error(f"{operator.spelled} has nothing after it", self._next, "its value, without a space")
            return EVERYTHING
        if self._next.kind in (TokenKind.OPEN, TokenKind.OPEN_ANY):
            return self._term(reading, depth + 1)
        first = self._next
        return self._read(reading, first, self._glued_text())

    def _read(self, reading: _Reading, token: QueryToken, text: str) -> Node:
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

    def _closed(self, node: Node, kind: TokenKind) -> Node:
        self.expect(kind)
        return node


def _error(problem: str, token: QueryToken, expected: str) -> QueryError:
    return QueryError(problem, position=token.start + 1, expected=expected)


def _shown(token: QueryToken) -> str:
    return repr(token.text[:40]) if token.kind is not TokenKind.END else "the end"


def _joined(join: type[And] | type[Or], parts: list[Node]) -> Node:
    if not parts:
        return EVERYTHING
    return parts[0] if len(parts) == 1 else join(tuple(parts))
