"""Senders who imitate a well-known one: letters that look alike (`paypa1`, `netfIix`), or a known name with a word that
frightens or pays beside it (`bank-verify.top`). Pure; a guess that only ever takes trust away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache

from postroom.mail.header_features import FREEMAIL, listed_words, split_domain, trades
from postroom.mail.patterns import fold

_SHORTEST = 5
_ALIKE = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "5": "s", "3": "e", "4": "a", "8": "b"})
_FRIGHTENING = listed_words("beside")
_DROPPED = re.compile(r"[^a-z0-9]+")


@lru_cache(16_384)
def imitated(name: str, address: str) -> str | None:
    """The well-known sender that this one pretends to be, or None."""
    own, _, _ = split_domain(address.rpartition("@")[2])
    if own in FREEMAIL:
        return _disguised(name)
    parts = [part for part in _DROPPED.split(own) if part]
    for part in parts:
        if found := _look_alike(part):
            return found
    return _disguised(name) or _with_a_threat(parts)


def _look_alike(part: str) -> str | None:
    known = trades()
    if part in known or len(part) < _SHORTEST:
        return None
    found = _skeletons().get(_skeleton(part))
    return found if found != part else None


def _disguised(name: str) -> str | None:
    """A name that reads like a known one, and is not written like it: `PayPaI` with a capital i."""
    for word in _plain_words(name):
        found = _look_alike(word)
        if found and word != found:
            return found
    return None


def _plain_words(name: str) -> Iterator[str]:
    for word in name.split():
        kept = "".join(char for char in word if char.isalnum())
        # A capital i or an l within small letters look alike; at the start of a word a capital is usual.
        yield _DROPPED.sub("", fold(kept))


def _with_a_threat(parts: list[str]) -> str | None:
    known = trades()
    named = [part for part in parts if len(part) > 3 and part in known]
    rest = [part for part in parts if part not in known]
    if named and any(_frightens(part) for part in rest):
        return named[0]
    return None


def _frightens(part: str) -> bool:
    return part in _FRIGHTENING or part.rstrip("0123456789") in _FRIGHTENING


def _skeleton(text: str) -> str:
    return text.translate(_ALIKE).replace("rn", "m").replace("vv", "w")


@cache
def _skeletons() -> dict[str, str]:
    return {_skeleton(name): name for name in sorted(trades(), reverse=True) if len(name) >= _SHORTEST}
