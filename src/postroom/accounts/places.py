"""The places of an IMAP account's messages in the control database; implements `mailboxes.imap.places.PlaceStore`.

Places and the journal of what changed are written in one transaction, under a lock on the account's journal: what a
reader of changes gets is exactly what the places went through, however many processes look into the mailbox.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, delete, func, literal, or_, select, tuple_, update

from postroom.db import Database, Dialect, Prepared, Tx
from postroom.db.database import driver_sql, insert, insert_for
from postroom.db.tables.accounts import mailbox_changes as changes
from postroom.db.tables.accounts import mailbox_folders as folders
from postroom.db.tables.accounts import mailbox_journals as journals
from postroom.db.tables.accounts import mailbox_places as places
from postroom.mailboxes.imap.places import (
    EntryKind,
    FlagFilter,
    FolderChange,
    FolderRole,
    Folders,
    FolderState,
    IdentifiedPlace,
    JournalEntry,
    JournalState,
    Place,
    PlaceKey,
    by_message,
    entry_between,
)
from postroom.mailboxes.protocol import MessageId, Span

_AT_ONCE = 400
"""Values in one statement."""
_KEPT_GENERATIONS = 1_000
"""Changes that the reader has taken in are kept for this many more, in case it is set back."""
_MOST_KEYWORDS = 500
_KEY_COLUMNS = ("account_id", "folder_id", "uidvalidity", "uid")


_COLUMNS = (
    places.c.folder_id,
    places.c.uidvalidity,
    places.c.uid,
    places.c.flags,
    places.c.received_s,
    places.c.size,
    places.c.message_id,
    places.c.email_id,
    places.c.header_id,
    places.c.provisional,
    places.c.seen,
)
_AT_KEY = and_(*(places.c[name] == bindparam(f"at_{name}") for name in _KEY_COLUMNS))
_SET_FLAGS = Prepared(update(places).where(_AT_KEY).values(flags=bindparam("flags")))
_IDENTIFY = Prepared(
    update(places)
    .where(_AT_KEY)
    .values(message_id=bindparam("message_id"), header_id=bindparam("header_id"), provisional=False)
)
_ENTER = Prepared(changes.insert())
# By hand, since every message asks for its places several times: SQLAlchemy takes longer for a list of values than the
# database takes to find them.
_MINE = f"SELECT {', '.join(column.name for column in _COLUMNS)} FROM mailbox_places WHERE account_id = :account"  # noqa: S608
_AT_UIDS = f"{_MINE} AND folder_id = :folder AND uidvalidity = :uidvalidity AND uid"
_OF_MESSAGES = f"{_MINE} AND message_id"


@cache
def _query_among(dialect: Dialect, query: str) -> str:
    is_among = "= ANY(:wanted)" if dialect is Dialect.POSTGRESQL else "IN (SELECT value FROM json_each(:wanted))"
    return driver_sql(dialect, f"{query} {is_among}")


@cache
def _insert_new(dialect: Dialect) -> Prepared:
    return Prepared(insert_for(dialect, places).on_conflict_do_nothing())


@dataclass(frozen=True)
class DatabasePlaces:
    database: Database
    account_id: str

    async def folders(self) -> dict[str, FolderState]:
        return await self.database.read(lambda tx: _folders(tx, self.account_id))

    async def keywords(self) -> frozenset[str]:
        return frozenset((await self._journal()).keywords.split())

    async def journal(self) -> JournalState:
        row = await self._journal()
        return JournalState(row.epoch, row.generation, row.floor)

    async def _journal(self) -> Row[Any]:
        row: Row[Any] | None = await self.database.read(lambda tx: tx.execute(_journal_of(self.account_id)).first())
        if row is not None:
            return row
        return await self.database.write(lambda tx: _lock(tx, self.account_id))

    async def entries(self, since: int) -> Sequence[JournalEntry]:
        def read(tx: Tx) -> list[JournalEntry]:
            later = _mine(changes, self.account_id) & (changes.c.generation > since)
            rows = tx.execute(select(changes).where(later).order_by(changes.c.generation, changes.c.number))
            return [_entry(row) for row in rows]

        floor = since - _KEPT_GENERATIONS
        if floor > (await self.journal()).floor:
            await self.database.write(lambda tx: _forget(tx, self.account_id, floor))
        return await self.database.read(read)

    async def put_folders(self, found: Sequence[FolderState], gone: Collection[str]) -> None:
        def put(tx: Tx) -> None:
            _lock(tx, self.account_id)
            for folder in found:
                values = _folder_values(self.account_id, folder)
                named = {name: values[name] for name in ("wire_name", "delimiter", "role")}
                statement = insert(tx, folders).values(**values)
                tx.execute(statement.on_conflict_do_update(index_elements=["account_id", "folder_id"], set_=named))
            for folder_id in gone:
                used = select(places.c.uid).where(_mine(places, self.account_id), places.c.folder_id == folder_id)
                mine = _mine(folders, self.account_id) & (folders.c.folder_id == folder_id)
                tx.execute(delete(folders).where(mine, ~used.exists()))

        if found or gone:
            await self.database.write(put)

    async def places(self, folder_id: str, *, from_uid: int | None = None) -> Sequence[Place]:
        later = [] if from_uid is None else [places.c.uid >= from_uid]
        return await self._select(places.c.folder_id == folder_id, *later)

    async def flags(self, folder_id: str) -> Sequence[tuple[int, int, frozenset[str]]]:
        query = select(places.c.uidvalidity, places.c.uid, places.c.flags)
        query = query.where(_mine(places, self.account_id), places.c.folder_id == folder_id)
        rows = await self.database.read(lambda tx: tx.execute(query).all())
        return [(uidvalidity, uid, _flag_set(text)) for uidvalidity, uid, text in rows]

    async def places_at(self, keys: Sequence[PlaceKey]) -> Sequence[Place]:
        if not keys:
            return ()
        return await self.database.read(lambda tx: _at(tx, self.account_id, keys))

    async def places_of(self, ids: Collection[MessageId]) -> Sequence[Place]:
        return await self.database.read(lambda tx: _places_of(tx, self.account_id, ids))

    async def listed(
        self,
        span: Span | None,
        folder_ids: Collection[str] | None,
        *,
        after: Place | None = None,
        most: int | None = None,
        header_id: str | None = None,
        flag: FlagFilter | None = None,
    ) -> Sequence[Place]:
        conditions: list[ColumnElement[bool]] = []
        if flag is not None:
            conditions.append(_let_through(flag, self.account_id))
        if header_id is not None:
            conditions.append(places.c.header_id.in_([header_id, ""]))
        if span is not None:
            conditions.append(places.c.received_s >= span.start)
            if span.end is not None:
                conditions.append(places.c.received_s < span.end)
        if folder_ids is not None:
            conditions.append(places.c.folder_id.in_(sorted(folder_ids)))
        if after is not None:
            conditions.append(_follows(after))
        return await self._select(
            *conditions, most=most, by_folder=span is None and folder_ids is not None and not most
        )

    async def unknown(self, *, since: int | None = None, sizes: Collection[int] | None = None) -> Sequence[Place]:
        unknown: list[ColumnElement[bool]] = [places.c.message_id.is_(None)]
        if since is not None:
            unknown.append(places.c.seen > since)
        found = await self._select(*unknown)
        return found if sizes is None else [place for place in found if place.size in sizes]

    async def following(self, folder_ids: Collection[str], received_s: int, most: int) -> Sequence[Place]:
        query = (
            select(*_COLUMNS)
            .where(
                _mine(places, self.account_id),
                places.c.folder_id.in_(sorted(folder_ids)),
                places.c.message_id.is_(None),
                places.c.received_s >= received_s,
            )
            .order_by(places.c.received_s, places.c.uid)
            .limit(most)
        )
        return await self.database.read(lambda tx: _read_places(tx, query))

    async def _select(
        self, *conditions: ColumnElement[bool], most: int | None = None, by_folder: bool = False
    ) -> list[Place]:
        """`by_folder`: the rows of a few folders are found and then sorted. SQLite would else go through those of all
        folders by their time, as is right for the first few of many."""
        received = places.c.received_s + 0 if by_folder else places.c.received_s
        query = (
            select(*_COLUMNS)
            .where(_mine(places, self.account_id), *conditions)
            .order_by(received.desc(), places.c.uid.desc(), places.c.folder_id, places.c.uidvalidity)
            .limit(most)
        )
        return await self.database.read(lambda tx: _read_places(tx, query))

    async def expect(self, change: FolderChange) -> None:
        new = [place for place in change.new if place.message_id is None]

        def put(tx: Tx) -> None:
            generation = _raise_generation(tx, self.account_id)
            _insert(tx, self.account_id, new, generation)

        await self.database.write(put)

    async def apply(self, found: Sequence[FolderChange]) -> bool:
        return await self.database.write(lambda tx: _apply(tx, self.account_id, found))

    async def identify(self, found: Sequence[IdentifiedPlace]) -> None:
        await self.database.write(lambda tx: _identify(tx, self.account_id, found))

    async def count(self) -> int:
        def read(tx: Tx) -> int:
            query = select(func.count(places.c.message_id.distinct())).where(_mine(places, self.account_id))
            unknown = select(func.count()).where(_mine(places, self.account_id), places.c.message_id.is_(None))
            return int(tx.execute(query).scalar_one()) + int(tx.execute(unknown).scalar_one())

        return await self.database.read(read)


def begin_places(tx: Tx, account_id: str, begun: Sequence[FolderState]) -> None:
    """Forget all places of an account, and begin with these folders, which were not looked into yet. Cursors into the
    journal of before are no longer known."""
    for table in (changes, places, folders, journals):
        tx.execute(delete(table).where(_mine(table, account_id)))
    _lock(tx, account_id)
    if begun:
        tx.execute(folders.insert(), [_folder_values(account_id, folder) for folder in begun])


def _mine(table: Any, account_id: str) -> ColumnElement[bool]:
    mine: ColumnElement[bool] = table.c.account_id == account_id
    return mine


def _follows(place: Place) -> ColumnElement[bool]:
    """Later in the order of listings: newest first, then by UID, folder and numbering."""
    by_folder = tuple_(places.c.folder_id, places.c.uidvalidity) > (place.folder_id, place.uidvalidity)
    lower = or_(places.c.uid < place.uid, and_(places.c.uid == place.uid, by_folder))
    same_time = and_(places.c.received_s == place.received_s, lower)
    return and_(places.c.received_s <= place.received_s, or_(places.c.received_s < place.received_s, same_time))


def _let_through(wanted: FlagFilter, account_id: str) -> ColumnElement[bool]:
    is_there = (literal(" ") + places.c.flags + literal(" ")).contains(wanted.text, autoescape=True)
    if not wanted.is_there:
        return ~is_there
    having = select(places.c.message_id).where(_mine(places, account_id), is_there)
    return or_(places.c.message_id.is_(None), places.c.message_id.in_(having))


def _journal_of(account_id: str) -> Any:
    return select(journals).where(journals.c.account_id == account_id)


def _lock(tx: Tx, account_id: str) -> Row[Any]:
    """The journal, locked until the transaction ends; it begins with the first use."""
    new = {
        "epoch": str(10**14 + secrets.randbelow(9 * 10**14)),
        "generation": 0,
        "entries": 0,
        "floor": 0,
        "keywords": "",
    }
    tx.insert_missing(journals, {"account_id": account_id, **new})
    row: Row[Any] = tx.execute(tx.locking(_journal_of(account_id))).one()
    return row


def _raise_generation(tx: Tx, account_id: str) -> int:
    generation = int(_lock(tx, account_id).generation) + 1
    tx.execute(update(journals).where(journals.c.account_id == account_id).values(generation=generation))
    return generation


def _forget(tx: Tx, account_id: str, floor: int) -> None:
    tx.execute(delete(changes).where(_mine(changes, account_id), changes.c.generation <= floor))
    lower = (journals.c.account_id == account_id) & (journals.c.floor < floor)
    tx.execute(update(journals).where(lower).values(floor=floor))


def _folders(tx: Tx, account_id: str) -> dict[str, FolderState]:
    rows = tx.execute(select(folders).where(_mine(folders, account_id)))
    return {row.folder_id: _folder(row) for row in rows}


def _apply(tx: Tx, account_id: str, found: Sequence[FolderChange]) -> bool:
    """Together: a message that left one folder for another is in neither for no moment."""
    generation = _raise_generation(tx, account_id)
    known = _folders(tx, account_id)
    for change in found:
        now = known.get(change.before.id)
        if now is None or now.revision != change.before.revision:
            return False
    found = [_with_flags_of_new(tx, account_id, change) for change in found]
    ids = {each for change in found for each in _affected(tx, account_id, change)}
    before = by_message(_places_of(tx, account_id, ids))
    states = {}
    for change in found:
        _remember_keywords(tx, account_id, [*change.flags.values(), *(place.flags for place in change.new)])
        _remove(tx, account_id, change.gone)
        _set_flags(tx, account_id, change)
        _insert(tx, account_id, change.new, generation)
        state = replace(change.after, revision=change.before.revision + 1)
        states[state.id] = state
        row = _mine(folders, account_id) & (folders.c.folder_id == state.id)
        tx.execute(update(folders).where(row).values(**_folder_values(account_id, state)))
    after = by_message(_places_of(tx, account_id, ids))
    both = known, known | states
    entries = [entry_between(generation, each, before[each], after[each], both) for each in sorted(ids)]
    _write(tx, account_id, [each for each in entries if each is not None])
    return True


def _with_flags_of_new(tx: Tx, account_id: str, change: FolderChange) -> FolderChange:
    """A new place may be recorded already, by `expect`: then the look tells how its flags are by now."""
    if not change.new:
        return change
    flags = {place.uid: place.flags for place in change.new}
    query = select(places.c.uid, places.c.flags).where(
        _mine(places, account_id),
        places.c.folder_id == change.after.id,
        places.c.uidvalidity == change.after.uidvalidity,
        places.c.uid.between(min(flags), max(flags)),
    )
    known = {uid: frozenset(text.split()) for uid, text in tx.execute(query)}
    differing = {uid: flags[uid] for uid, before in known.items() if uid in flags and flags[uid] != before}
    return replace(change, flags={**change.flags, **differing})


def _affected(tx: Tx, account_id: str, change: FolderChange) -> set[MessageId]:
    """The messages whose places a change concerns, as they are known now."""
    wanted = [place.key for place in change.gone]
    wanted += [(change.after.id, change.after.uidvalidity, uid) for uid in change.flags]
    ids = {place.message_id for place in _at(tx, account_id, wanted)}
    ids |= {place.message_id for place in change.new}
    return {each for each in ids if each is not None}


def _identify(tx: Tx, account_id: str, found: Sequence[IdentifiedPlace]) -> None:
    generation = _raise_generation(tx, account_id)
    known = _folders(tx, account_id)
    present = {place.key: place for place in _at(tx, account_id, [each.place.key for each in found])}
    steps: dict[int, list[tuple[Place, IdentifiedPlace]]] = defaultdict(list)
    for each in found:
        place = present.get(each.place.key)
        if place is not None and (place.message_id != each.message_id or place.is_provisional):
            steps[place.seen].append((place, each))
    for seen in sorted(steps):
        _identify_step(tx, account_id, steps[seen], seen, generation, known)


def _identify_step(
    tx: Tx,
    account_id: str,
    step: Sequence[tuple[Place, IdentifiedPlace]],
    seen: int,
    generation: int,
    known: Folders,
) -> None:
    """Places that were first seen together. A message that had none is new as of then; others change now."""
    ids = {each.message_id for _, each in step} | {place.message_id for place, _ in step if place.message_id}
    held = {place.key: place for place in _places_of(tx, account_id, ids)}
    before = by_message(held.values())
    for place, each in step:
        now = place._replace(message_id=each.message_id, header_id=each.header_id, is_provisional=False)
        held[place.key] = now
    tx.run_many(_IDENTIFY, [_identified_values(account_id, held[place.key]) for place, _ in step])
    after = by_message(held.values())
    late = {each.message_id for place, each in step if place.message_id is not None}
    entries = []
    for message_id in sorted(ids):
        is_new = not before[message_id] and message_id not in late
        when = seen if is_new else generation
        entry = entry_between(when, message_id, before[message_id], after[message_id], (known, known))
        if entry is not None:
            entries.append(entry)
    _write(tx, account_id, entries)


def _write(tx: Tx, account_id: str, entries: Sequence[JournalEntry]) -> None:
    if not entries:
        return
    first = int(_lock(tx, account_id).entries)
    rows = [_entry_values(account_id, first + number, entry) for number, entry in enumerate(entries)]
    tx.run_many(_ENTER, rows)
    values = {"entries": first + len(rows)}
    tx.execute(update(journals).where(journals.c.account_id == account_id).values(**values))


def _remember_keywords(tx: Tx, account_id: str, flags: Iterable[Collection[str]]) -> None:
    """A server that makes up keywords without end is heard out only so far."""
    found = {each for some in flags for each in some if not each.startswith("\\") and len(each) <= 200}
    known = set(str(_lock(tx, account_id).keywords).split())
    if found <= known:
        return
    kept = sorted(known) + sorted(found - known)
    values = {"keywords": " ".join(kept[:_MOST_KEYWORDS])}
    tx.execute(update(journals).where(journals.c.account_id == account_id).values(**values))


def _insert(tx: Tx, account_id: str, new: Sequence[Place], generation: int) -> None:
    rows = [{**_place_values(account_id, place), "seen": generation} for place in new]
    tx.run_many(_insert_new(tx.dialect), rows)


def _remove(tx: Tx, account_id: str, gone: Sequence[Place]) -> None:
    for where in _at_keys(account_id, [place.key for place in gone]):
        tx.execute(delete(places).where(where))


def _set_flags(tx: Tx, account_id: str, change: FolderChange) -> None:
    rows = [
        {**_key_values(account_id, (change.after.id, change.after.uidvalidity, uid)), "flags": " ".join(sorted(flags))}
        for uid, flags in change.flags.items()
    ]
    tx.run_many(_SET_FLAGS, rows)


def _places_of(tx: Tx, account_id: str, ids: Collection[MessageId]) -> list[Place]:
    found = _among(tx, _OF_MESSAGES, {"account": account_id}, sorted(ids))
    # SQLite would go through all of the account's places in the order of their time, if it were asked to sort them.
    return sorted(found, key=lambda place: (place.received_s, place.folder_id))


def _at(tx: Tx, account_id: str, keys: Sequence[PlaceKey]) -> list[Place]:
    found: list[Place] = []
    for (folder_id, uidvalidity), uids in _by_numbering(keys).items():
        here = {"account": account_id, "folder": folder_id, "uidvalidity": uidvalidity}
        found += _among(tx, _AT_UIDS, here, uids)
    return found


def _among(tx: Tx, query: str, given: Mapping[str, Any], wanted: Sequence[str] | Sequence[int]) -> list[Place]:
    """The places of a query whose last column is one of these values."""
    if not wanted:
        return []
    values = list(wanted) if tx.dialect is Dialect.POSTGRESQL else json.dumps(wanted)
    rows = tx.rows(_query_among(tx.dialect, query), {**given, "wanted": values})
    return [_place(row) for row in rows]


def _at_keys(account_id: str, keys: Sequence[PlaceKey]) -> Iterator[ColumnElement[bool]]:
    """Conditions that together hold for exactly these places, each for a portion of one folder's."""
    for (folder_id, uidvalidity), uids in _by_numbering(keys).items():
        of_folder = (places.c.folder_id == folder_id) & (places.c.uidvalidity == uidvalidity)
        for some in _portions(uids, _AT_ONCE):
            yield and_(_mine(places, account_id), of_folder, places.c.uid.in_(some))


def _by_numbering(keys: Sequence[PlaceKey]) -> dict[tuple[str, int], list[int]]:
    """The UIDs of each folder, by its numbering."""
    uids: dict[tuple[str, int], list[int]] = defaultdict(list)
    for folder_id, uidvalidity, uid in keys:
        uids[folder_id, uidvalidity].append(uid)
    return uids


def _portions(items: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]


def _folder(row: Row[Any]) -> FolderState:
    return FolderState(
        row.folder_id,
        row.wire_name,
        row.delimiter,
        FolderRole(row.role),
        row.uidvalidity,
        row.uidnext,
        row.modseq,
        row.messages,
        row.revision,
    )


def _folder_values(account_id: str, folder: FolderState) -> dict[str, Any]:
    return {
        "account_id": account_id,
        "folder_id": folder.id,
        "wire_name": folder.wire,
        "delimiter": folder.delimiter,
        "role": folder.role,
        "uidvalidity": folder.uidvalidity,
        "uidnext": folder.uidnext,
        "modseq": folder.modseq,
        "messages": folder.messages,
        "revision": folder.revision,
    }


def _read_places(tx: Tx, query: Select[Any]) -> list[Place]:
    return [_place(row) for row in tx.execute(query).all()]


def _place(row: Sequence[Any]) -> Place:
    """A row of `_COLUMNS`, which are in the order of a place's fields."""
    folder_id, uidvalidity, uid, flags, received_s, size, message_id, email_id, header_id, provisional, seen = row
    known = (received_s, size, message_id, email_id, header_id, bool(provisional), seen)
    return Place(folder_id, uidvalidity, uid, _flag_set(flags), *known)


@lru_cache(4_096)
def _flag_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _key_values(account_id: str, key: PlaceKey) -> dict[str, Any]:
    return {f"at_{name}": value for name, value in zip(_KEY_COLUMNS, (account_id, *key), strict=True)}


def _identified_values(account_id: str, place: Place) -> dict[str, Any]:
    return {
        **_key_values(account_id, place.key),
        "message_id": place.message_id,
        "header_id": place.header_id,
    }


def _place_values(account_id: str, place: Place) -> dict[str, Any]:
    return {
        "account_id": account_id,
        "folder_id": place.folder_id,
        "uidvalidity": place.uidvalidity,
        "uid": place.uid,
        "message_id": place.message_id,
        "flags": " ".join(sorted(place.flags)),
        "received_s": place.received_s,
        "size": place.size,
        "email_id": place.email_id,
        "header_id": place.header_id,
        "provisional": place.is_provisional,
        "seen": place.seen,
    }


def _entry(row: Row[Any]) -> JournalEntry:
    add, remove, now = (frozenset(text.split()) for text in (row.added, row.removed, row.labels))
    return JournalEntry(row.generation, row.message_id, EntryKind(row.kind), add, remove, now)


def _entry_values(account_id: str, number: int, entry: JournalEntry) -> dict[str, Any]:
    added, removed, labels = (" ".join(sorted(each)) for each in (entry.add, entry.remove, entry.now))
    return {
        "account_id": account_id,
        "number": number,
        "generation": entry.generation,
        "message_id": entry.message_id,
        "kind": entry.kind,
        "added": added,
        "removed": removed,
        "labels": labels,
    }
