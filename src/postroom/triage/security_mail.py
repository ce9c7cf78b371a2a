"""Whether a message is about the security of an account or of money: codes, log-ins, resets, alerts of a bank. Pure.

The model alone never hides such mail, so a doubt counts: a newsletter about passwords is asked about too. Phrases are
in `security_phrases.toml`; they are looked for as plain words in one pass, in texts folded as they are.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any

from postroom.mail.patterns import PatternSet
from postroom.triage.folding import folded, one_alphabet, visible, words

_TEXT_READ = 20_000
_RAW_READ = 100_000
"""Preview padding of characters that cannot be seen may stand before the text."""
_HEADER_READ = 4_000
_SKIPPED_HEADERS = frozenset({"to", "cc", "from", "subject", "message-id", "in-reply-to", "references", "date"})


def security_sign(
    sender: str, sender_name: str | None, subject: str | None, text: str, headers: Mapping[str, Any] | None = None
) -> str | None:
    """What makes it security mail, in words for the person who is asked; None where nothing does."""
    about = _plain(subject or "", _HEADER_READ)
    if _found(about, in_subject=True):
        return "its subject is that of a code, a log-in, a reset or an alert"
    if _speaks_of_security(sender, sender_name):
        return "its sender deals with security or money"
    if _found(_plain(text[:_RAW_READ], _TEXT_READ), in_subject=False):
        return "it speaks of a code, a log-in, a reset or an alert"
    tagged = " ".join(_values(headers or {}))
    return "a header calls it security mail" if _found(_plain(tagged, _HEADER_READ), in_subject=True) else None


def _plain(text: str, longest: int) -> str:
    return words(one_alphabet(folded(visible(text)[:longest])))


def _found(text: str, *, in_subject: bool) -> bool:
    spaced, joined = _compiled(in_subject)
    if spaced.found_in(text.encode("utf-8", "replace")) or _code().search(text):
        return True
    return not text.isascii() and bool(joined.found_in(text.replace(" ", "").encode("utf-8", "replace")))


@cache
def _phrases() -> dict[str, Any]:
    return tomllib.loads(files("postroom.triage").joinpath("security_phrases.toml").read_text("utf-8"))


@cache
def _compiled(in_subject: bool) -> tuple[PatternSet, PatternSet]:
    listed = _phrases()
    anywhere = [*chain.from_iterable(listed["anywhere"].values()), *(listed["in_subject"] if in_subject else ())]
    spaced = [words(folded(phrase))[:-1] for phrase in anywhere]
    joined = [
        words(folded(phrase)).replace(" ", "") for phrase in chain.from_iterable(listed["without_blanks"].values())
    ]
    return PatternSet(spaced, "security", are_literal=True), PatternSet(joined, "security", are_literal=True)


@cache
def _code() -> re.Pattern[str]:
    """A word for a code with its digits within four words of it, before or after; or the form of Google's codes."""
    named = "|".join(words(folded(word)).strip() for word in _phrases()["code_words"])
    digits, near = r"(?:\d{4,8}|\d{3} \d{3}) ", r"(?:\w{1,20} ){0,4}"
    return re.compile(rf" (?:{named}) {near}{digits}| {digits}{near}(?:{named}) | g \d{{5,8}} ")


def _speaks_of_security(sender: str, name: str | None) -> bool:
    """By the parts of the address and the name: `alerts@`, `accountprotection.example`, `My Bank`."""
    text = words(one_alphabet(folded(visible(f"{sender[:400]} {(name or '')[:400]}"))))
    begins = tuple(_phrases()["senders"])
    parts = text.split()
    return any(part.startswith(begins) or part.endswith(("bank", "banka", "banque", "banco")) for part in parts)


def _values(headers: Mapping[str, Any]) -> Iterable[str]:
    for name, value in headers.items():
        if name.lower() not in _SKIPPED_HEADERS and "list" not in name.lower():
            yield str(value)[:300]
