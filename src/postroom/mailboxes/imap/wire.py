"""IMAP's wire format without I/O: bytes in, responses out; and the words of commands.

What a server sends is bounded in every direction: the length of a line, the size of a literal, the depth of lists. A
server that goes beyond raises `WireError`, after which nothing more can be read from it.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

MAX_LINE = 16 << 20
"""A SEARCH answer has all its numbers in one line: room for two million."""
MAX_LITERAL = 128 << 20
MAX_LITERALS = 256
MAX_DEPTH = 16

Value: TypeAlias = "bytes | list[Value] | None"
"""An atom or string, NIL, or a list."""


class WireError(Exception):
    """The server sent what cannot be read or is too large. The connection has to be closed."""


@dataclass(frozen=True, slots=True)
class ResponseCode:
    """What stands in brackets at the beginning of a status: `[UIDVALIDITY 7]`."""

    name: str
    values: tuple[Value, ...] = ()

    def number(self, index: int = 0) -> int | None:
        return as_number(self.values[index]) if index < len(self.values) else None


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """One response. `tag` is None where it is untagged, and `+` where the server asks for more."""

    tag: str | None
    name: str
    """In capitals: OK, NO, BAD, BYE, PREAUTH, or a kind of data such as FETCH."""
    number: int | None = None
    values: tuple[Value, ...] = ()
    code: ResponseCode | None = None
    text: str = ""

    @property
    def weight(self) -> int:
        """Roughly the memory that it takes, in bytes."""
        code = () if self.code is None else self.code.values
        return len(self.text) + sum(map(_weight, (*self.values, *code)))


def _weight(value: Value) -> int:
    return 64 + (sum(map(_weight, value)) if isinstance(value, list) else len(value or b""))


FlagLine: TypeAlias = "tuple[int, bytes]"
"""A UID, and its flags with spaces between."""
_UID, _FLAGS = rb"UID ([1-9][0-9]{0,17})", rb"FLAGS \(([ -!#-'*-Z\\^-z|]{0,1000}+)\)"
_FLAG_LINE = re.compile(rb"\* [0-9]{1,9} FETCH \((?:%b %b|%b %b)\)\r\n" % (_UID, _FLAGS, _FLAGS, _UID))
_FLAG_LINES = re.compile(rb"(?:%b)++" % _FLAG_LINE.pattern)
STATUSES = frozenset({"OK", "NO", "BAD", "BYE", "PREAUTH"})
_LITERAL = re.compile(rb"~?\{(\d{1,20})\+?\}$")
_TAG = re.compile(rb"[A-Za-z0-9.]{1,32}")


@dataclass(slots=True)
class _Pending:
    """A response whose end has not arrived: lines without their ends, and the literals between them."""

    lines: list[bytes] = field(default_factory=list)
    literals: list[bytes] = field(default_factory=list)
    awaited: int | None = None
    """The size of the literal that comes next."""
    size: int = 0


class ResponseReader:
    """Takes bytes as they arrive, in pieces of any size, and gives responses."""

    def __init__(self, max_literal: int = MAX_LITERAL, max_line: int = MAX_LINE) -> None:
        self._max_literal = max_literal
        self._max_line = max_line
        self._buffer = bytearray()
        self._searched = 0
        self._pending = _Pending()

    @property
    def is_idle(self) -> bool:
        """Whether nothing has arrived that is not part of a response which was given out."""
        return not self._buffer and not self._pending.lines

    def feed(self, data: bytes) -> Iterator[ServerResponse]:
        """The responses that are complete with this data."""
        self._buffer += data
        while True:
            if self._pending.awaited is not None and not self._take_literal(self._pending.awaited):
                return
            line = self._take_line()
            if line is None:
                return
            if (size := _announced(line)) is not None:
                self._begin_literal(line, size)
                continue
            pending, self._pending = self._pending, _Pending()
            pending.lines.append(line)
            yield parse(pending.lines, pending.literals)

    def flag_lines(self, data: bytes) -> list[FlagLine]:
        """The lines that have arrived with this data and before any other, as far as each has only a UID and flags.
        What follows is for `feed`, which would read them as the same and takes many times as long."""
        self._buffer += data
        run = None if self._pending.lines else _FLAG_LINES.match(self._buffer)
        if run is None:
            return []
        found = _FLAG_LINE.findall(self._buffer, 0, run.end())
        del self._buffer[: run.end()]
        self._searched = 0
        return [(int(uid or last_uid), flags or first_flags) for uid, flags, first_flags, last_uid in found]

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if len(self._buffer) + self._pending.size > self._max_line:
                raise WireError(f"a line of more than {self._max_line:,} bytes")
            return None
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        self._searched = 0
        self._pending.size += len(line)
        if self._pending.size > self._max_line:
            raise WireError(f"a line of more than {self._max_line:,} bytes")
        return line

    def _begin_literal(self, line: bytes, size: int) -> None:
        if size > self._max_literal:
            raise WireError(f"a literal of {size:,} bytes, more than the {self._max_literal:,} that are read")
        if len(self._pending.literals) >= MAX_LITERALS:
            raise WireError(f"more than {MAX_LITERALS} literals in one response")
        if sum(map(len, self._pending.literals)) + size > 2 * self._max_literal:
            raise WireError("literals that are too large together")
        self._pending.lines.append(line)
        self._pending.awaited = size

    def _take_literal(self, size: int) -> bool:
        if len(self._buffer) < size:
            return False
        with memoryview(self._buffer) as view:  # a slice of the buffer would be copied twice
            self._pending.literals.append(bytes(view[:size]))
        del self._buffer[:size]
        self._pending.awaited = None
        self._searched = 0
        return True


def _announced(line: bytes) -> int | None:
    """The size of the literal that a line announces at its end."""
    if not line.endswith(b"}"):
        return None
    found = _LITERAL.search(line)
    return None if found is None else int(found[1])


def parse(lines: list[bytes], literals: list[bytes]) -> ServerResponse:
    """One response from its lines, of which all but the last end in the announcement of a literal."""
    first = lines[0]
    if first.startswith(b"+"):
        return ServerResponse("+", "+", text=_text(first[1:].strip()))
    tag, _, rest = first.partition(b" ")
    is_untagged = tag == b"*"
    if not is_untagged and not _TAG.fullmatch(tag):
        raise WireError("a line that is no response")
    scanner = _Scanner([rest, *lines[1:]], literals)
    number = as_number(word) if (word := scanner.word()).isdigit() else None
    if word.isdigit() and number is None:
        raise WireError("a number that is too large")
    name = _text(word if number is None else scanner.word()).upper()
    mine = None if is_untagged else tag.decode("ascii")
    if name in STATUSES:
        code = scanner.code()
        return ServerResponse(mine, name, number, code=code, text=_text(scanner.rest()))
    if not is_untagged:
        raise WireError("an answer that is neither OK, NO nor BAD")
    return ServerResponse(None, name, number, tuple(scanner.values()))


_ATOM = re.compile(rb'(?:[^ ()"\[]++|\[[^\]]*+\])++')
_ATOM_IN_CODE = re.compile(rb'(?:[^ ()"\[\]]++|\[[^\]]*+\])++')
"""What stands in brackets is part of an atom: `BODY[HEADER.FIELDS (DATE)]`."""
_QUOTED = re.compile(rb'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_TOKEN = re.compile(
    rb' *+(?:(?P<open>\()|(?P<close>\))|"(?P<quoted>(?:[^"\\]++|\\.)*+)"|'
    rb'(?P<atom>(?:[^ ()"\[]++|\[[^\]]*+\])++)(?!\[))',
    re.DOTALL,
)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


class _Scanner:
    """Reads values from the lines of one response."""

    def __init__(self, lines: list[bytes], literals: list[bytes]) -> None:
        self._lines = lines
        self._literals = literals
        self._index = 0
        self._line = lines[0]
        self._at = 0
        self._atoms = _ATOM

    def word(self) -> bytes:
        end = self._line.find(b" ", self._at)
        end = len(self._line) if end < 0 else end
        word, self._at = self._line[self._at : end], min(end + 1, len(self._line))
        return word

    def rest(self) -> bytes:
        return self._line[self._at :].strip()

    def code(self) -> ResponseCode | None:
        """The code in brackets. One that cannot be read is taken for text, as is its place in a response."""
        if self._peek() != b"[":
            return None
        start = self._at
        self._at += 1
        self._atoms = _ATOM_IN_CODE
        try:
            values = self._until(b"]", 0)
        except WireError:
            self._at = start
            return None
        finally:
            self._atoms = _ATOM
        if not values or not isinstance(values[0], bytes):
            return None
        return ResponseCode(_text(values[0]).upper(), tuple(values[1:]))

    def values(self) -> list[Value]:
        """What is plain is read token by token; anything else by the rules, one letter at a time, from where it was."""
        before = self._index, self._line, self._at
        found = self.plain_values()
        if found is not None:
            return found
        self._index, self._line, self._at = before
        return self._until(b"", 0)

    def plain_values(self) -> list[Value] | None:
        """None where something is not as it should be, or is nested too deep."""
        found: list[Value] = []
        outer: list[list[Value]] = []
        while (token := _TOKEN.match(self._line, self._at)) is not None:
            self._at = token.end()
            kind = token.lastgroup
            if kind == "atom":
                atom = token["atom"]
                if atom[0] in b"{~" and self._is_literal(token.start("atom")):
                    found.append(self._literal())
                else:
                    found.append(None if len(atom) == 3 and atom.upper() == b"NIL" else atom)
            elif kind == "quoted":
                text = token["quoted"]
                found.append(_ESCAPED.sub(rb"\1", text) if b"\\" in text else text)
            elif kind == "open" and len(outer) < MAX_DEPTH:
                outer.append(found)
                found = []
            elif kind == "close" and outer:
                whole, found = found, outer.pop()
                found.append(whole)
            else:
                return None
        return None if outer or self._line[self._at :].strip(b" ") else found

    def _until(self, end: bytes, depth: int) -> list[Value]:
        if depth > MAX_DEPTH:
            raise WireError(f"lists that are nested more than {MAX_DEPTH} deep")
        found: list[Value] = []
        while True:
            self._skip_spaces()
            letter = self._peek()
            if letter == end:
                self._at += len(end)
                return found
            if not letter:
                raise WireError("a response that ends within a list")
            found.append(self._value(letter, depth))

    def _value(self, letter: bytes, depth: int) -> Value:
        if letter == b"(":
            self._at += 1
            return self._until(b")", depth + 1)
        if letter == b'"':
            return self._quoted()
        if letter in (b"{", b"~") and self._is_literal(self._at):
            return self._literal()
        atom = self._atom()
        return None if len(atom) == 3 and atom.upper() == b"NIL" else atom

    def _quoted(self) -> bytes:
        found = _QUOTED.match(self._line, self._at)
        if found is None:
            raise WireError("a string that does not end")
        self._at = found.end()
        return _ESCAPED.sub(rb"\1", found[1])

    def _is_literal(self, at: int) -> bool:
        return self._index < len(self._literals) and _LITERAL.fullmatch(self._line, at) is not None

    def _literal(self) -> bytes:
        found = self._literals[self._index]
        self._index += 1
        self._line, self._at = self._lines[self._index], 0
        return found

    def _atom(self) -> bytes:
        found = self._atoms.match(self._line, self._at)
        end = self._at if found is None else found.end()
        if self._line.startswith(b"[", end):
            raise WireError("a bracket that is not closed")
        if found is None:
            raise WireError("a character where a value should begin")
        self._at = end
        return found[0]

    def _skip_spaces(self) -> None:
        while self._line.startswith(b" ", self._at):
            self._at += 1

    def _peek(self) -> bytes:
        return self._line[self._at : self._at + 1]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def as_number(value: Value) -> int | None:
    """A number of at most 63 bits, as UIDs and modification sequences are."""
    if not isinstance(value, bytes) or not value.isdigit() or len(value) > 19:
        return None
    number = int(value)
    return number if number < 2**63 else None


def as_text(value: Value) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else ""


def pairs(value: Value) -> dict[str, Value]:
    """`(NAME value NAME value)` as a mapping, names in capitals. The last of equal names counts."""
    if not isinstance(value, list):
        raise WireError("something else than a list of names and values")
    names = [as_text(each).upper() for each in value[::2]]
    return dict(zip(names, value[1::2], strict=False))


class UidSet:
    """Numbers as ranges: a server may name four billion in a few letters."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in sorted(ranges):
            if merged and start <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        self.ranges = merged
        self._starts = [start for start, _ in merged]

    @classmethod
    def of(cls, numbers: Iterable[int]) -> UidSet:
        return cls((number, number) for number in numbers)

    @classmethod
    def parse(cls, value: Value) -> UidSet:
        """`1:3,7`. Raises WireError for anything else."""
        ranges = []
        for part in as_text(value).split(",") if value else ():
            first, _, last = part.partition(":")
            if not (first.isdigit() and (last or first).isdigit() and len(first) < 20 and len(last) < 20):
                raise WireError("a set of numbers that cannot be read")
            start, end = sorted((int(first), int(last or first)))
            ranges.append((start, end))
        return cls(ranges)

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number <= self.ranges[at][1]

    def __len__(self) -> int:
        return sum(end - start + 1 for start, end in self.ranges)

    def __str__(self) -> str:
        return ",".join(str(start) if start == end else f"{start}:{end}" for start, end in self.ranges)

    def in_order(self, most: int) -> list[int]:
        """Every number. Raises WireError where there are more than `most`."""
        if len(self) > most:
            raise WireError(f"a set of {len(self):,} numbers where {most:,} are possible")
        return [number for start, end in self.ranges for number in range(start, end + 1)]


def decode_folder(wire: str) -> str:
    """A folder's name from modified UTF-7 (RFC 3501, 5.1.3); as it stands where that is broken."""
    if "&" not in wire:
        return wire
    try:
        return re.sub(r"&([^-]*)-", _decode_shift, wire)
    except (ValueError, binascii.Error):
        return wire


def _decode_shift(found: re.Match[str]) -> str:
    if not found[1]:
        return "&"
    packed = found[1].replace(",", "/")
    return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True).decode("utf-16-be")


def encode_folder(name: str) -> str:
    """A folder's name in modified UTF-7."""

    def shift(found: re.Match[str]) -> str:
        packed = base64.b64encode(found[0].encode("utf-16-be")).rstrip(b"=").decode("ascii")
        return f"&{packed.replace('/', ',')}-"

    return re.sub(r"[^\x20-\x7e]+", shift, name.replace("&", "&-"))


def quoted(text: str) -> bytes:
    """A string of a command. Raises ValueError for what does not fit into one; `Literal` is for that."""
    data = text.encode("latin-1")
    if any(each in b"\r\n\0" for each in data):
        raise ValueError("a string of a command has no line break")
    return b'"' + data.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes within a command, which are sent as they are once the server agrees."""

    data: bytes = field(repr=False)


def flag_list(flags: Collection[str]) -> bytes:
    return b"(" + " ".join(sorted(flags)).encode("ascii") + b")"


def token_message(capabilities: frozenset[str], user: str, token: str, host: str, port: int) -> tuple[str, str] | None:
    """The mechanism that the server offers for tokens, and what it is sent (RFC 7628; Google's XOAUTH2)."""
    if "AUTH=OAUTHBEARER" in capabilities:
        name = user.replace("=", "=3D").replace(",", "=2C")
        return "OAUTHBEARER", f"n,a={name},\x01host={host}\x01port={port}\x01auth=Bearer {token}\x01\x01"
    if "AUTH=XOAUTH2" in capabilities:
        return "XOAUTH2", f"user={user}\x01auth=Bearer {token}\x01\x01"
    return None
