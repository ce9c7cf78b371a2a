"""`postroom audit verify`: holds every entry against its seal, every seal against the one before it, and the chain
against the heads that were recorded. Reads in batches while others go on writing, and changes nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from postroom.audit import chain
from postroom.db import Database, Tx
from postroom.domain.clock import utc_text

BATCH = 1_000
MOST_PROBLEMS = 1_000
_MOST_KEYS = 100
LATE = timedelta(minutes=10)
"""Entries are sealed about in the order of their times. One that is older by more was added later than it says, or
its writer's clock was wrong."""

CANNOT_SEE = (
    "Entries that were written and removed again before they were sealed, within about two seconds of a running "
    "service, or until the next start of one.",
    "Entries that someone with write access to the database adds now, with a true time: they are sealed as they are.",
    "Any change by someone who has the vault's key, the database, and every copy of the recorded heads.",
    "Anything before the first seal: entries from before an upgrade are sealed as they were found.",
)

Progress = Callable[[int], None]


class AuditFlaw(StrEnum):
    CHANGED = "changed"
    REMOVED = "removed"
    SEALS_MISSING = "seals missing"
    REWRITTEN = "rewritten"
    CUT_SHORT = "cut short"
    NOT_OURS = "not written by Postroom"
    OUT_OF_ORDER = "out of order"


@dataclass(frozen=True, slots=True)
class AuditProblem:
    flaw: AuditFlaw
    message: str
    entry_id: str | None = None
    at: str | None = None
    position: int | None = None


@dataclass
class AuditVerification:
    """What was found; `head` is the last seal that was seen."""

    sealed: int = 0
    waiting: int = 0
    waiting_since: datetime | None = None
    uncheckable: int = 0
    """Seals made with a key that this vault does not hold."""
    missing_keys: list[str] = field(default_factory=list)
    heads: int = 0
    """Recorded heads that the chain was held against."""
    head: chain.Head | None = None
    problems: list[AuditProblem] = field(default_factory=list)
    more_problems: int = 0

    @property
    def is_sound(self) -> bool:
        return not self.problems and not self.uncheckable

    def add(self, problem: AuditProblem) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.more_problems += 1


async def verify(
    database: Database,
    keys: chain.KeyRing,
    heads: Iterable[chain.RecordedHead],
    progress: Progress = lambda count: None,
) -> AuditVerification:
    """Check the whole log. `progress` is called with the number of entries checked since its last call."""
    recorded = [*heads, *await database.read(_own_head)]
    check = ChainCheck(keys, recorded)
    after: int | str = 0
    while rows := await database.read(lambda tx, after=after: _seals(tx, after, BATCH)):  # type: ignore[misc]
        for row in rows:
            check.seal(row)
        after = rows[-1].place
        progress(len(rows))
    seen = ""
    while entries := await database.read(lambda tx, seen=seen: _unsealed(tx, seen, BATCH)):  # type: ignore[misc]
        for entry, is_pending in entries:
            check.unsealed(entry, is_pending=is_pending)
        progress(len(entries))
        if entries[-1][0].id <= seen:
            break
        seen = entries[-1][0].id
    check.end()
    return check.found


async def verify_end(
    database: Database, keys: chain.KeyRing, last: chain.RecordedHead | None, count: int = BATCH
) -> AuditVerification:
    """The same for the last seals only, which takes milliseconds however long the log is."""
    recorded = [*([] if last is None else [last]), *await database.read(_own_head)]
    newest = max((each.head.position for each in recorded), default=0)
    start = max(0, newest - count)
    rows = await database.read(lambda tx: _seals(tx, start - 1, count + 2)) if newest else []
    check = ChainCheck(keys, [each for each in recorded if each.head.position >= start])
    for number, row in enumerate(rows):
        if number == 0 and start > 0:
            check.begin_after(row)
        else:
            check.seal(row)
    check.end()
    return check.found


def note_verified(tx: Tx, found: AuditVerification, now: datetime) -> None:
    """For the dashboard and the doctor: when the log was last verified, how far, and with what result."""
    chain.locked_chain(tx)
    problems = len(found.problems) + found.more_problems + found.uncheckable
    position = 0 if found.head is None else found.head.position
    chain.set_chain(tx, {"verified_at": now, "verified_position": position, "verified_problems": problems})


@dataclass(frozen=True, slots=True)
class _SealRow:
    place: Any
    """The position as it is stored: a number, unless it was tampered with."""
    entry_id: str
    key_id: str
    sealed_at: str
    mac: str
    entry: chain.StoredEntry


class ChainCheck:
    """Checks the chain without a database: rows are handed in, in order."""

    def __init__(self, keys: chain.KeyRing, heads: Iterable[chain.RecordedHead]) -> None:
        self.found = AuditVerification()
        self._keys = keys
        self._heads: dict[int, list[chain.RecordedHead]] = {}
        for each in heads:
            self._heads.setdefault(each.head.position, []).append(each)
            self.found.heads += 1
        self._position = 0
        self._previous: str | None = chain.FIRST_MAC
        self._newest_id = ""
        self._newest_at: datetime | None = None

    def begin_after(self, row: _SealRow) -> None:
        """Trust this seal, and check those after it."""
        self._position, self._previous = int(row.place), row.mac

    def seal(self, row: _SealRow) -> None:
        if not isinstance(row.place, int):
            self._flaw(AuditFlaw.CHANGED, "its seal has a position that is no number", row)
            return
        self.found.sealed += 1
        if row.place != self._position + 1:
            self._gap(row)
        self._check(row)
        self._compare_heads(row)
        if not row.entry.is_missing:
            self._check_order(row.entry, row.place)
        self._position, self._previous = row.place, row.mac
        self.found.head = chain.Head(row.place, row.mac, row.key_id, row.sealed_at)

    def _gap(self, row: _SealRow) -> None:
        first, last = self._position + 1, row.place - 1
        which = f"Seal {first} is" if first == last else f"Seals {first} to {last} are"
        said = f"{which} missing before entry {row.entry_id}, and so are or may be the entries under them."
        self.found.add(AuditProblem(AuditFlaw.SEALS_MISSING, said, row.entry_id, row.sealed_at, row.place))
        self._previous = None  # what the next seal covers is gone

    def _check(self, row: _SealRow) -> None:
        if row.entry.is_missing:
            self._flaw(AuditFlaw.REMOVED, "the entry is gone; its seal is still there", row)
            return
        key = self._key(row.key_id)
        if key is None:
            self.found.uncheckable += 1
            return
        if self._previous is None:
            return
        expected = chain.mac_of(key, row.place, self._previous, row.entry_id, row.sealed_at, row.entry)
        if not hmac.compare_digest(expected.encode(), row.mac.encode()):
            self._flaw(AuditFlaw.CHANGED, "the entry, its seal or their order was changed after it was sealed", row)

    def _key(self, key_id: str) -> chain.SealKey | None:
        if key_id in self.found.missing_keys:
            return None
        key = self._keys.find(key_id)
        if key is None and len(self.found.missing_keys) < _MOST_KEYS:
            self.found.missing_keys.append(key_id)
        return key

    def _compare_heads(self, row: _SealRow) -> None:
        for each in self._heads.pop(row.place, ()):
            if each.head.mac != row.mac:
                said = f"{_recorded(each)} has another seal at position {row.place}: the log was rewritten since"
                self._flaw(AuditFlaw.REWRITTEN, said, row)

    def _check_order(self, entry: chain.StoredEntry, position: int | None) -> None:
        """Checks both the time in the id, which lists are sorted by, and the time that is displayed."""
        at = entry.at
        made, newest = _made(entry.id), _made(self._newest_id)
        is_late = made is not None and newest is not None and newest - made > LATE
        if at is not None and self._newest_at is not None and self._newest_at - at > LATE:
            is_late = True
        if is_late:
            said = f"Entry {entry.id} says {_shown(entry)} and was added after later ones, or a clock was set back."
            self.found.add(AuditProblem(AuditFlaw.OUT_OF_ORDER, said, entry.id, _shown(entry), position))
        self._newest_id = max(self._newest_id, entry.id)
        self._newest_at = (
            at if self._newest_at is None or (at is not None and at > self._newest_at) else self._newest_at
        )

    def unsealed(self, entry: chain.StoredEntry, *, is_pending: bool) -> None:
        if not is_pending:
            said = (
                f"Entry {entry.id} of {_shown(entry)} was never handed to the sealer: it was not written by Postroom, "
                "or its seal was removed, or a Postroom from before the upgrade was still running."
            )
            self.found.add(AuditProblem(AuditFlaw.NOT_OURS, said, entry.id, _shown(entry)))
            return
        self.found.waiting += 1
        if entry.at is not None:
            self.found.waiting_since = min(entry.at, self.found.waiting_since or entry.at)
        self._check_order(entry, None)

    def end(self) -> None:
        """Recorded heads that were not met belong to seals that are missing."""
        beyond = [each for position, found in self._heads.items() if position > self._position for each in found]
        if not beyond:
            return
        furthest = max(beyond, key=lambda each: each.head.position)
        first, last = self._position + 1, furthest.head.position
        said = (
            f"The chain ends at position {self._position}, and {_recorded(furthest)} names position {last}, sealed "
            f"{furthest.head.at}: entries {first} to {last} are missing from the end."
        )
        self.found.add(AuditProblem(AuditFlaw.CUT_SHORT, said, at=furthest.head.at, position=last))

    def _flaw(self, flaw: AuditFlaw, what: str, row: _SealRow) -> None:
        at = row.sealed_at if row.entry.is_missing else _shown(row.entry)
        said = f"Entry {row.entry_id} of {at}: {what}."
        self.found.add(AuditProblem(flaw, said, row.entry_id, at, row.place if isinstance(row.place, int) else None))


def _recorded(each: chain.RecordedHead) -> str:
    return f"the head in {each.source} of {utc_text(each.moment)}"


def _shown(entry: chain.StoredEntry) -> str:
    return "an unreadable time" if entry.at is None else entry.at.isoformat(timespec="seconds")


def _made(entry_id: str) -> timedelta | None:
    """The time in a UUIDv7; None for anything else."""
    try:
        return timedelta(milliseconds=int(entry_id[:8] + entry_id[9:13], 16))
    except ValueError:
        return None


def _own_head(tx: Tx) -> list[chain.RecordedHead]:
    row = chain.chain_row(tx)
    if row is not None and row.position:
        at = row.sealed_at or datetime.fromtimestamp(0, UTC)
        head = chain.Head(row.position, row.mac, str(row.key_id), utc_text(at))
        return [chain.RecordedHead(head, at, "the database's own record")]
    return []


def _seals(tx: Tx, after: Any, limit: int) -> list[_SealRow]:
    texts = ", ".join(chain.as_text(tx.dialect, f"s.{name}") for name in ("entry_id", "key_id", "sealed_at", "mac"))
    sql = (
        f"SELECT s.position, {texts}, {chain.raw_columns(tx.dialect)} FROM audit_seals s "  # noqa: S608
        "LEFT JOIN audit_log a ON a.id = s.entry_id WHERE s.position > :after ORDER BY s.position LIMIT :limit"
    )
    return [_seal_row(row) for row in chain.run(tx, sql, after=after, limit=limit)]


def _seal_row(row: Sequence[Any]) -> _SealRow:
    entry_id, key_id, sealed_at, mac = (chain.plain_text(each) for each in row[1:5])
    return _SealRow(row[0], entry_id, key_id, sealed_at, mac, chain.stored_entry(row[5:]))


def _unsealed(tx: Tx, after: str, limit: int) -> list[tuple[chain.StoredEntry, bool]]:
    beyond = "a.id > :after AND" if after else ""
    sql = (
        f"SELECT p.entry_id, {chain.raw_columns(tx.dialect)} FROM audit_log a "  # noqa: S608
        "LEFT JOIN audit_seals s ON s.entry_id = a.id LEFT JOIN audit_pending p ON p.entry_id = a.id "
        f"WHERE {beyond} s.entry_id IS NULL ORDER BY a.id LIMIT :limit"
    )
    given = {"after": after} if after else {}
    return [(chain.stored_entry(row[1:]), row[0] is not None) for row in chain.run(tx, sql, limit=limit, **given)]
