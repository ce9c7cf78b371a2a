"""Mail addresses as people write them, and the one form in which they are compared (PQ-2). Pure functions.

Everything a header may hold is understood: display names, comments, groups, routes, quoted local parts, encoded words,
several addresses in one header, international domains. What cannot be an address is left out, never an error.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from postroom.mail.charsets import decode_words

MAX_ADDRESSES = 2_000
MAX_HEADER_CHARS = 64 << 10
_MOST_PIECES = 50_000
"""Words, separators and spaces of all values together; two thousand long addresses have fewer."""
_MAX_ADDRESS_CHARS = 320
_REMEMBERED_CHARS = 200
_GMAIL_DOMAINS = frozenset({"gmail.com", "googlemail.com"})
# An encoded word is one piece: the commas and brackets that careless senders leave in it separate nothing.
_PIECE = re.compile(
    r'=\?[^?\s]{1,40}\?[bBqQ]\?[^?\s]{0,1000}\?=|"(?:[^"\\]|\\.)*"?|<[^<>"]*(?:"[^"]*"[^<>"]*)?>?|[(),;:]|[^\s"<(),;:]+|\s+|.',
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ATEXT = re.compile(r"[^\s\"(),:;<>@\[\]\\]+")


# `Ann Lee <ann@example.org>`, `"Lee, Ann" <ann@example.org>` or `ann@example.org`, as most mail has it.
_ATOMS = r"[\w.+-]{1,64}@[\w.-]{1,200}"
_USUAL = re.compile(
    rf"""(?:(?:"([ \w!#$%&'()*+,./:;<>@{{}}~-]*)" *|([ \w!#$%&'*+./{{}}~-]*))<({_ATOMS})>|({_ATOMS}))""", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Address:
    """One mailbox: what to show, and what to send to."""

    address: str
    display_name: str = ""

    @property
    def canonical(self) -> str:
        return _remembered_canonical(self.address)

    @property
    def domain(self) -> str:
        """The domain in its compared form; empty where the address has none."""
        return self.canonical.rpartition("@")[2] if "@" in self.address else ""

    def __str__(self) -> str:
        return f"{self.display_name} <{self.address}>" if self.display_name else self.address


def canonical_address(address: str, *, fold_gmail: bool = False) -> str:
    """The form in which addresses are compared: lowercase, domain in its ASCII form, quotes only where needed.

    Gmail delivers `a.b+c@gmail.com` to `ab@gmail.com`; that is folded only if asked for, since no other host does so.
    """
    local, at, domain = unicodedata.normalize("NFC", address.strip()).rpartition("@")
    if not at:
        return domain.lower()
    local, domain = _plain_local(local).lower(), _ascii_domain(domain)
    if fold_gmail and domain in _GMAIL_DOMAINS:
        local, domain = local.partition("+")[0].replace(".", ""), "gmail.com"
    return f"{local}@{domain}"


@lru_cache(4_096)
def _remembered_canonical(address: str) -> str:
    return canonical_address(address)


def _plain_local(local: str) -> str:
    if len(local) > 1 and local[0] == local[-1] == '"':
        inner = _ESCAPE.sub(r"\1", local[1:-1])
        return inner if _ATEXT.fullmatch(inner) else local
    return local


def _ascii_domain(domain: str) -> str:
    domain = domain.strip().lower().rstrip(".")
    if domain.isascii() or len(domain) > 253:
        return domain
    try:
        return domain.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return domain


def parse_addresses(*values: str) -> tuple[Address, ...]:
    """All mailboxes of one or more header values, in order; members of groups included, repetitions kept."""
    if len(values) == 1 and len(values[0]) <= _REMEMBERED_CHARS:
        return _remembered(values[0])
    return _all_mailboxes(values)


@lru_cache(4_096)
def _remembered(value: str) -> tuple[Address, ...]:
    """Of a mailbox's messages, most are from and to people who have written before."""
    return usual_mailbox(value) or _all_mailboxes((value,))


def usual_mailbox(value: str) -> tuple[Address] | None:
    """The mailbox of a value that holds one, written as most are; None for any other, which takes longer to read."""
    found = _USUAL.fullmatch(value)
    if found is None:
        return None
    quoted, name, address, bare = found.groups()
    return (Address(bare),) if bare else (Address(address, " ".join((quoted or name or "").split())),)


def _all_mailboxes(values: Sequence[str]) -> tuple[Address, ...]:
    found: list[Address] = []
    left = _MOST_PIECES
    for value in values:
        reader = _Reader()
        for piece in islice(_PIECE.finditer(value[:MAX_HEADER_CHARS]), left):
            reader.feed(piece[0])
            left -= 1
        reader.finish()
        found += reader.found
        if len(found) >= MAX_ADDRESSES or not left:
            break
    return tuple(found[:MAX_ADDRESSES])


def canonical_set(addresses: Iterable[Address]) -> frozenset[str]:
    return frozenset(address.canonical for address in addresses)


@dataclass(slots=True)
class _Reader:
    """Collects the pieces of one mailbox until a separator ends it."""

    found: list[Address] = field(default_factory=list)
    _words: list[str] = field(default_factory=list)
    _comment: list[str] = field(default_factory=list)
    _angle: str | None = None
    _depth: int = 0
    _has_at: bool = False

    def feed(self, piece: str) -> None:
        if piece in "()":
            self._parenthesis(piece)
        elif self._depth:
            self._comment.append(piece)
        elif piece in ",;":
            self.finish()
        elif piece == ":" and self._angle is None and not self._has_at:
            self._words.clear()  # the name of a group; its members follow
        elif piece[0] == "<" and len(piece) > 1:
            self._angle = piece if self._angle is None else self._angle
        else:
            self._words.append(piece)
            self._has_at = self._has_at or "@" in piece

    def _parenthesis(self, piece: str) -> None:
        if piece == "(":
            self._depth += 1
        elif self._depth:
            self._depth -= 1
            if not self._depth:
                self._comment.append(" ")

    def finish(self) -> None:
        words, comment, angle = "".join(self._words), "".join(self._comment), self._angle
        self._words.clear()
        self._comment.clear()
        self._angle = None
        self._has_at = False
        address = _address_in(words if angle is None else angle.strip("<>"))
        if address:
            self.found.append(Address(address, _shown_name(comment if angle is None else words or comment)))


def _address_in(text: str) -> str:
    """The address itself, without the route and the white space that old programs put in; empty if it is none."""
    text = text.strip()
    if text.startswith("@") and ":" in text:
        text = text.rpartition(":")[2]
    if text.lower().startswith("mailto:"):
        text = text[7:]
    local, at, domain = text.rpartition("@")
    if not local.startswith('"'):
        local = "".join(local.split())
    address = local + at + "".join(domain.split())
    if len(address) > _MAX_ADDRESS_CHARS or address == "@" or (not at and " " in text):
        return ""
    return address if address.isprintable() else "".join(char for char in address if char.isprintable())


def _shown_name(words: str) -> str:
    name = words.strip()
    if len(name) > 1 and name[0] == name[-1] == '"' and '"' not in _ESCAPE.sub("", name[1:-1]):
        name = _ESCAPE.sub(r"\1", name[1:-1])
    name = decode_words(name)
    if not name.isprintable():
        name = "".join(char if char.isprintable() else " " for char in name)
    return " ".join(name.split())
