"""One message of a restore: its life, how it shall lie in the target, and what is not as it was. Pure.

    planned ──► appending ──► appended ──► verified ──► trashed
      │  ▲  ╲       │  ▲          ╲
      │  │   ╲──► untrashing        ╲──► failed
      │  └──────────┘ it is not there after all
      ╰──► already_there | failed

What is outside is written down first: an item is `appending` before the call is made, and after an interruption it is
looked for before it is appended again. Only what a run added itself is ever moved to the trash by an undo.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from postroom.domain.actions import ItemState
from postroom.domain.errors import Fatal

_S = ItemState
NEXT: Mapping[ItemState, frozenset[ItemState]] = {
    _S.PLANNED: frozenset({_S.APPENDING, _S.UNTRASHING, _S.ALREADY_THERE, _S.FAILED}),
    _S.APPENDING: frozenset({_S.APPENDED, _S.PLANNED, _S.FAILED}),
    _S.UNTRASHING: frozenset({_S.APPENDED, _S.PLANNED, _S.TRASHED}),
    _S.APPENDED: frozenset({_S.VERIFIED, _S.FAILED, _S.TRASHED}),
    _S.VERIFIED: frozenset({_S.TRASHED}),
    _S.ALREADY_THERE: frozenset(),
    _S.FAILED: frozenset({_S.PLANNED, _S.TRASHED}),
    _S.TRASHED: frozenset(),
}
OVER = frozenset({_S.VERIFIED, _S.ALREADY_THERE, _S.FAILED, _S.TRASHED})
"""A run has nothing more to do for these."""
ADDED = (_S.APPENDED, _S.VERIFIED, _S.UNTRASHING)


@dataclass(frozen=True, slots=True)
class RestoreItem:
    run_id: str
    position: int
    key: str
    sha256: str
    size: int
    date: datetime
    labels: tuple[str, ...]
    thread_id: str
    message_id: str | None
    source_id: str | None
    state: ItemState
    target_id: str | None
    target_thread: str | None
    since: str | None
    detail: str | None
    differences: Mapping[str, Any] | None
    updated_at: datetime

    @property
    def was_added(self) -> bool:
        """By this run: it lies in the target now, and an undo moves it to the trash."""
        return self.state in ADDED or (self.state is ItemState.FAILED and self.target_id is not None)


def require_step(old: ItemState, new: ItemState, *, target_id: str | None) -> None:
    """Raises where the journal would tell a story that cannot have happened."""
    needs_id = new in (_S.UNTRASHING, _S.APPENDED, _S.VERIFIED, _S.ALREADY_THERE, _S.TRASHED)
    if new not in NEXT[old] or (needs_id and target_id is None) or (new is _S.PLANNED and target_id is not None):
        raise Fatal(f"A message of a restore cannot go from {old} to {new}; this is a fault in Postroom.")


# How it shall lie in the target

_NEVER_PUT_BACK = frozenset({"DRAFT", "CHAT"})
_FLAGS = frozenset({"UNREAD", "STARRED", "IMPORTANT"})
_PLACES_LEFT_OUT = frozenset({"TRASH"})
"""Mail is put back to be there again."""


def is_put_back(labels: Iterable[str]) -> bool:
    """Drafts and chats are not messages that were sent."""
    return _NEVER_PUT_BACK.isdisjoint(labels)


def wanted_labels(labels: Iterable[str], folder: str | None) -> tuple[str, ...]:
    """The labels that it had; with a folder, that one instead, and whether it is read and starred."""
    had = frozenset(labels) - _PLACES_LEFT_OUT
    wanted = had if folder is None else (had & _FLAGS) | {folder}
    return tuple(sorted(wanted))


# What is not as it was

_LINE_END = re.compile(rb"\r\n|\r|\n")
_SAME_SECOND = timedelta(seconds=1)


def fingerprint(raw: bytes) -> str:
    """Equal for bytes that differ in nothing but line ends, which some mailboxes rewrite."""
    return hashlib.sha256(_LINE_END.sub(b"\r\n", raw)).hexdigest()


def wire_sha256(raw: bytes) -> str:
    """The hash of these bytes as a mailbox gives them back that ends every line with CRLF, as IMAP servers do."""
    return hashlib.sha256(raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")).hexdigest()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A message as the archive has it."""

    sha256: str
    fingerprint: str
    date: datetime
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadBack:
    """A message as the target gave it back."""

    raw: bytes
    date: datetime | None
    labels: frozenset[str]
    thread_id: str = ""

    def has_bytes_of(self, wanted: Wanted) -> bool:
        """The same bytes, but perhaps for line ends."""
        return hashlib.sha256(self.raw).hexdigest() == wanted.sha256 or fingerprint(self.raw) == wanted.fingerprint


def differences(wanted: Wanted, found: ReadBack) -> dict[str, Any]:
    """What is not as in the archive, by kind; empty if everything is. Only for a message with the same bytes."""
    said: dict[str, Any] = {}
    if (digest := hashlib.sha256(found.raw).hexdigest()) != wanted.sha256:
        said["line_ends"] = digest
    if found.date is None or abs(found.date - wanted.date) >= _SAME_SECOND:
        said["date"] = None if found.date is None else found.date.isoformat()
    want, have = _folded(wanted.labels), _folded(found.labels)
    if missing := sorted(want[name] for name in want.keys() - have.keys()):
        said["labels_missing"] = missing
    if more := sorted(have[name] for name in have.keys() - want.keys()):
        said["labels_added"] = more
    return said


def _folded(labels: Collection[str]) -> dict[str, str]:
    """No mailbox has two labels that differ only in case."""
    return {label.casefold(): label for label in labels}


# The end

DIFFERENCES = ("line_ends", "date", "labels_missing", "labels_added")


def certificate_of(items: Iterable[RestoreItem], issued_at: datetime) -> dict[str, Any]:
    """What a restore comes to, from the journal at its end. `digest` is over every message and where it lies, in the
    order of the journal, so that a changed row shows."""
    counts: dict[str, int] = {str(state): 0 for state in (_S.VERIFIED, _S.ALREADY_THERE, _S.FAILED)}
    differing: dict[str, int] = dict.fromkeys(DIFFERENCES, 0)
    threads: dict[str, set[str]] = defaultdict(set)
    total, size, rewritten, digest = 0, 0, 0, hashlib.sha256()
    for item in items:
        total, size = total + 1, size + item.size
        counts[str(item.state)] = counts.get(str(item.state), 0) + 1
        rewritten += item.state is _S.VERIFIED and "line_ends" in (item.differences or ())
        for kind in item.differences or ():
            differing[kind] = differing.get(kind, 0) + 1
        if item.target_thread:
            threads[item.thread_id].add(item.target_thread)
        digest.update(f"{item.sha256} {item.state} {item.target_id or '-'}\n".encode())
    return {
        "issued_at": issued_at.isoformat(),
        "messages": total,
        "bytes": size,
        **counts,
        "verified_but_for_line_ends": rewritten,
        "differences": differing,
        "threads_split": sum(len(found) > 1 for found in threads.values()),
        "digest": digest.hexdigest(),
    }


def but_for_line_ends(certificate: Mapping[str, Any]) -> int:
    """How many of the messages that were read back have the archive's bytes except for line ends. An older certificate
    counts them together with those that were there before, so that it may be fewer."""
    most = min(certificate["verified"], certificate["differences"]["line_ends"])
    return int(certificate.get("verified_but_for_line_ends", most))


def said_of(differences: Mapping[str, Any] | None) -> list[str]:
    """For people: what is not as in the archive."""
    lines: list[str] = []
    for kind, value in (differences or {}).items():
        match kind:
            case "line_ends":
                lines.append("the mailbox rewrote its line ends; everything else is equal")
            case "date":
                lines.append(f"the mailbox dates it {value}" if value else "the mailbox gives it no date")
            case "labels_missing":
                lines.append(f"without {_names(value)}")
            case "labels_added":
                lines.append(f"also has {_names(value)}")
    return lines


def _names(labels: Sequence[str]) -> str:
    return ", ".join(labels)
