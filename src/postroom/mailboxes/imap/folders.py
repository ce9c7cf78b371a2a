"""Looks at a server's folders: which there are, and what changed in one since it was last looked into.

With QRESYNC or CONDSTORE the server says what changed; without, UIDs and flags are compared. What the server lists must
add up to what it says that it holds: a server that forgets half of a listing has not deleted half of the mail.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

from postroom.domain.ids import new_id
from postroom.mailboxes.errors import CallRefused, LabelGone, MailboxUnavailable, PermissionMissing
from postroom.mailboxes.imap.connection import MOST_UNTAGGED, Answer, ImapConnection, OnFlags, OnResponse
from postroom.mailboxes.imap.places import (
    GMAIL,
    FolderChange,
    FolderRole,
    FolderState,
    ListedFolder,
    Place,
    PlaceStore,
    gmail_id,
    gmail_label,
    header_id_of,
    match_again,
    roles_of,
    unreadable_id,
)
from postroom.mailboxes.imap.wire import (
    FlagLine,
    ServerResponse,
    UidSet,
    Value,
    as_number,
    as_text,
    pairs,
    quoted,
)

MOST_MESSAGES = 5_000_000
_LONGEST_LABEL = 200
_MOST_FOLDERS = 10_000
_MOST_UNDESCRIBED = 100
"""In one folder. Where a server says nothing of more messages than that, it is the server that fails."""
_FLAG = re.compile(r"\\?[!-~]{1,100}")
_DATE = re.compile(r"[ ]?(\d{1,2})-([A-Za-z]{3})-(\d{4}) (\d{2}):(\d{2}):(\d{2}) ([+-])(\d{2})(\d{2})")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


@dataclass(frozen=True, slots=True)
class FolderStatus:
    messages: int
    uidnext: int
    uidvalidity: int
    modseq: int | None


@dataclass(frozen=True, slots=True)
class FolderListing:
    folders: Mapping[str, ListedFolder]
    """By their names on the wire."""
    statuses: Mapping[str, FolderStatus]


async def list_folders(connection: ImapConnection) -> FolderListing:
    """All folders that hold mail. Where the server can, in one command."""
    if connection.selected is not None:
        await connection.command(b"NOOP")  # else the folder that is selected is counted as it was when it was
    has_modseq = bool({"CONDSTORE", "QRESYNC"} & connection.capabilities)
    items = b"(MESSAGES UIDNEXT UIDVALIDITY" + (b" HIGHESTMODSEQ)" if has_modseq else b")")
    if {"LIST-STATUS", "SPECIAL-USE"} <= connection.capabilities:
        answer = await connection.command(b'LIST "" "*" RETURN (SPECIAL-USE STATUS', items + b")")
    else:
        answer = await connection.command(b'LIST "" "*"')
    found = {folder.wire: folder for each in answer.named("LIST") if (folder := _listed(each)) and folder.is_mail}
    if len(found) > _MOST_FOLDERS:
        raise MailboxUnavailable(f"{connection.address.host} lists {len(found):,} folders, more than are read")
    statuses = _statuses(answer)
    left = [wire for wire in found if wire not in statuses and wire != connection.selected]
    if left:
        # What is refused says nothing here: a look into the folder says what is wrong.
        statuses |= _statuses(await connection.commands([b"STATUS " + quoted(wire) + b" " + items for wire in left]))
    return FolderListing(found, statuses)


def _listed(response: ServerResponse) -> ListedFolder | None:
    if len(response.values) < 3 or not isinstance(response.values[0], list):
        return None
    attributes, delimiter, name = response.values[:3]
    wire = as_text(name)
    if not wire or any(letter in wire for letter in "\r\n\0"):
        return None
    marks = frozenset(as_text(each).lower() for each in attributes) if isinstance(attributes, list) else frozenset()
    return ListedFolder("INBOX" if wire.upper() == "INBOX" else wire, as_text(delimiter)[:1], marks)


async def is_nonexistent(connection: ImapConnection, wire: str) -> bool:
    """Whether the server itself says that it has no folder of this name. One that has no codes for its refusals has to
    leave it out of a listing of its name alone, too."""
    try:
        await connection.command(b"STATUS", quoted(wire), b"(MESSAGES)")
    except LabelGone:
        return True
    except PermissionMissing:
        return False
    except CallRefused as error:
        if error.reason != "no":
            return False
        listed = (await connection.command(b'LIST ""', quoted(wire))).named("LIST")
        return not any((folder := _listed(each)) and folder.is_mail and folder.wire == wire for each in listed)
    return False


def _statuses(answer: Answer) -> dict[str, FolderStatus]:
    found = {}
    for response in answer.named("STATUS"):
        if len(response.values) == 2 and isinstance(response.values[1], list):
            items = {name: as_number(value) for name, value in pairs(response.values[1]).items()}
            wire = as_text(response.values[0])
            found["INBOX" if wire.upper() == "INBOX" else wire] = FolderStatus(
                items.get("MESSAGES") or 0,
                items.get("UIDNEXT") or 0,
                items.get("UIDVALIDITY") or 0,
                items.get("HIGHESTMODSEQ") or None,
            )
    return found


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """What a listing means for the folders that are known."""

    put: Sequence[FolderState]
    """New, renamed, or with another role."""
    renamed: frozenset[str]
    gone: Sequence[FolderState]


def plan_folders(known: Mapping[str, FolderState], listing: FolderListing) -> FolderPlan:
    """A folder that vanished while exactly one appeared with its UIDVALIDITY was renamed; its places are compared."""
    roles = roles_of(list(listing.folders.values()))
    by_wire = {folder.wire: folder for folder in known.values()}
    vanished = [folder for folder in known.values() if folder.wire not in listing.folders]
    appeared = [wire for wire in listing.folders if wire not in by_wire]
    put: list[FolderState] = []
    renamed: dict[str, str] = {}
    for folder in vanished:
        same = [wire for wire in appeared if _validity(listing, wire) == folder.uidvalidity != 0]
        rivals = [each for each in vanished if each.uidvalidity == folder.uidvalidity]
        if len(same) == 1 and len(rivals) == 1:
            renamed[same[0]] = folder.id
    for wire, listed in listing.folders.items():
        old = by_wire.get(wire) or known.get(renamed.get(wire, ""))
        state = replace(
            old or FolderState(f"folder-{_short_id()}", wire), wire=wire, delimiter=listed.delimiter, role=roles[wire]
        )
        if state != old:
            put.append(state)
    ids = frozenset(renamed.values())
    return FolderPlan(put, ids, [folder for folder in vanished if folder.id not in ids])


def _validity(listing: FolderListing, wire: str) -> int:
    status = listing.statuses.get(wire)
    return 0 if status is None else status.uidvalidity


def _short_id() -> str:
    return new_id().replace("-", "")[-16:].lower()


def is_unchanged(folder: FolderState, status: FolderStatus | None) -> bool:
    """Only where the server counts changes: without, flags may have changed unseen."""
    if status is None or status.modseq is None:
        return False
    now = (status.uidvalidity, status.uidnext, status.messages, status.modseq)
    return now == (folder.uidvalidity, folder.uidnext, folder.messages, folder.modseq)


@dataclass(slots=True)
class OpenFolder:
    """A selected folder. `exists` follows what the server says of it."""

    exists: int = 0
    uidvalidity: int = 0
    uidnext: int = 0
    modseq: int | None = None
    gone: list[UidSet] = field(default_factory=list)
    """What the server says to be gone, for as long as it is asked about."""

    def follow(self, response: ServerResponse) -> bool:
        if response.name == "EXISTS" and response.number is not None:
            self.exists = response.number
        elif response.name == "EXPUNGE":
            self.exists = max(self.exists - 1, 0)
        elif response.name == "VANISHED":
            is_earlier = bool(response.values) and isinstance(response.values[0], list)
            uids = UidSet.parse(response.values[-1] if response.values else None)
            self.gone.append(uids)
            if not is_earlier:
                self.exists = max(self.exists - len(uids), 0)
        else:
            return False
        return True


async def open_folder(connection: ImapConnection, wire: str, *, writable: bool = False) -> OpenFolder:
    """Select a folder; to read only, unless it is to be changed."""
    box = OpenFolder()
    verb = b"SELECT" if writable else b"EXAMINE"
    condstore = [b"(CONDSTORE)"] if "CONDSTORE" in connection.capabilities and not connection.has_qresync else []
    connection.selected = None
    answer = await connection.command(verb, quoted(wire), *condstore, take=box.follow)
    codes = answer.codes()
    for name, attribute in (("UIDVALIDITY", "uidvalidity"), ("UIDNEXT", "uidnext"), ("HIGHESTMODSEQ", "modseq")):
        if name in codes:
            setattr(box, attribute, codes[name].number() or 0)
    box.modseq = box.modseq or None
    box.gone.clear()
    if not box.uidvalidity or box.exists > MOST_MESSAGES:
        connection.abort()
        raise MailboxUnavailable(f"{connection.address.host} does not say how the folder {wire!r} is numbered")
    connection.selected, connection.uidvalidity = wire, box.uidvalidity
    return box


@dataclass(frozen=True, slots=True)
class FetchedItems:
    uid: int
    flags: frozenset[str]
    items: Mapping[str, Value]


def fetched(response: ServerResponse) -> FetchedItems | None:
    """None for a response that names no UID."""
    if response.name != "FETCH" or not response.values or not isinstance(response.values[0], list):
        return None
    items = pairs(response.values[0])
    uid = as_number(items.get("UID"))
    if not uid:
        return None
    return FetchedItems(uid, flags_of(items.get("FLAGS")) | gmail_labels_of(items.get("X-GM-LABELS")), items)


def gmail_labels_of(value: Value) -> frozenset[str]:
    """As they are kept among the flags; a label that is too long to be one is left out."""
    words = (gmail_label(as_text(each)) for each in value) if isinstance(value, list) else ()
    return frozenset(each for each in words if len(each) <= _LONGEST_LABEL)


def flags_of(value: Value) -> frozenset[str]:
    if not isinstance(value, list):
        return frozenset()
    return _flags_named(tuple(each for each in value if isinstance(each, bytes)))


@lru_cache(4_096)
def flags_in(words: bytes) -> frozenset[str]:
    """What `flags_of` says of the list with these words."""
    return flags_of([each for each in words.split() if each.upper() != b"NIL"])


@lru_cache(4_096)
def _flags_named(words: tuple[bytes, ...]) -> frozenset[str]:
    """Most messages of a mailbox have one of a few sets of flags."""
    flags = (as_text(each).lower() for each in words)
    return frozenset(each for each in flags if _FLAG.fullmatch(each) and each != "\\recent")


def instant_of(value: Value) -> int:
    """An INTERNALDATE in seconds since 1970; 0 where it cannot be read."""
    found = _DATE.fullmatch(as_text(value))
    if found is None or found[2].lower() not in _MONTHS:
        return 0
    offset = timedelta(hours=int(found[8]), minutes=int(found[9])) * (1 if found[7] == "+" else -1)
    try:
        day, year, hour, minute, second = (int(found[each]) for each in (1, 3, 4, 5, 6))
        month = _MONTHS.index(found[2].lower()) + 1
        date = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=timezone(offset))
        return max(int(date.timestamp()), 0)
    except (ValueError, OverflowError):
        return 0


def date_text(instant: datetime) -> bytes:
    """A time as APPEND wants it."""
    utc = instant.astimezone(UTC)
    month = _MONTHS[utc.month - 1].capitalize()
    return f'"{utc.day:02d}-{month}-{utc.year:04d} {utc:%H:%M:%S} +0000"'.encode("ascii")


class FolderLook:
    """One look into one folder, on one connection."""

    def __init__(self, connection: ImapConnection, folder: FolderState, store: PlaceStore) -> None:
        self._connection = connection
        self._folder = folder
        self._store = store
        self._box = OpenFolder()

    async def changes(self, *, was_renamed: bool = False, with_flags: bool = True) -> FolderChange:
        """From the known state to now. Without `with_flags`, a server that does not count changes need not be asked
        for the flags of all messages."""
        self._box = await open_folder(self._connection, self._folder.wire)
        if self._is_same and not was_renamed:
            change = await self._without_losses(with_flags)
            if change is not None:
                return change
        if not self._is_same:
            return await self._anew(await self._store.places(self._folder.id))
        recorded = await self._store.flags(self._folder.id)
        known = {uid: flags for uidvalidity, uid, flags in recorded if uidvalidity == self._box.uidvalidity}
        stale = [(uidvalidity, uid) for uidvalidity, uid, _ in recorded if uidvalidity != self._box.uidvalidity]
        ahead = {uid for uid in known if uid >= self._folder.uidnext}
        new = await self._arrived(ahead)
        flags, gone = await (self._compared(known) if was_renamed else self._since(known))
        gone |= ahead - new.keys()
        if len(known.keys() - gone | new.keys()) != self._box.exists:
            present = await self._present()
            gone = known.keys() - present
            missed = sorted(present - known.keys() - new.keys())
            new |= await self._described(str(UidSet.of(missed))) if missed else {}
            new |= self._undescribed(present - known.keys(), new)
        differing = {uid: each for uid, each in flags.items() if each != known.get(uid, each) and uid not in gone}
        lost = [(self._folder.id, *each) for each in [*stale, *((self._box.uidvalidity, uid) for uid in sorted(gone))]]
        return FolderChange(
            self._folder, self._state(new), list(new.values()), differing, await self._store.places_at(lost)
        )

    async def _arrived(self, ahead: Collection[int]) -> dict[int, Place]:
        """What came since the last look; `ahead` are UIDs that were recorded since. It is not asked for where the next
        UID is the one that it was."""
        since = self._folder.uidnext
        nothing_new = 0 < self._box.uidnext <= since and self._box.exists <= self._folder.messages
        return {} if nothing_new and not ahead else await self._described(f"{since}:*", lowest=since)

    async def _without_losses(self, with_flags: bool) -> FolderChange | None:
        """What came, and the flags that changed, where the counts prove that nothing went: then the places that stayed
        need not be compared one by one. None where that is not so."""
        has_count = self._folder.modseq is not None and self._box.modseq is not None
        if with_flags and not has_count:
            return None
        ahead = {place.uid for place in await self._store.places(self._folder.id, from_uid=self._folder.uidnext)}
        new = await self._arrived(ahead)
        flags, gone = await self._counted_since() if has_count else ({}, False)
        keys = [(self._folder.id, self._box.uidvalidity, uid) for uid in flags]
        known = {place.uid: place.flags for place in await self._store.places_at(keys)}
        is_whole = self._folder.messages + len(new) == self._box.exists
        if gone or not is_whole or not ahead <= new.keys() or len(known) < len(flags):
            return None
        differing = {uid: each for uid, each in flags.items() if each != known[uid]}
        return FolderChange(self._folder, self._state(new), list(new.values()), differing)

    async def _counted_since(self) -> tuple[dict[int, frozenset[str]], bool]:
        """Flags that changed, as the server counts changes; and whether it says that something is gone."""
        last = self._folder.uidnext - 1
        if last < 1 or self._folder.modseq == self._box.modseq:
            return {}, False
        vanished = " VANISHED" if self._connection.has_qresync else ""
        self._box.gone.clear()
        flags = await self._flags(f"1:{last}", f"(CHANGEDSINCE {self._folder.modseq}{vanished})")
        return {uid: each for uid, each in flags.items() if uid <= last}, any(map(len, self._box.gone))

    async def _anew(self, before: Sequence[Place]) -> FolderChange:
        """After a UIDVALIDITY reset, or at the first look."""
        new = await self._described("1:*", with_headers=bool(before)) if self._box.exists else {}
        if len(new) != self._box.exists and not before:
            new |= self._undescribed(await self._present(), new)
        if len(new) != self._box.exists:
            raise self._incomplete(len(new))
        again = match_again(before, list(new.values()))
        for uid, place in again.items():
            if new[uid].message_id is None:
                new[uid] = new[uid]._replace(message_id=place.message_id, is_provisional=True)
        return FolderChange(self._folder, self._state(new), list(new.values()), gone=before)

    def _state(self, new: Mapping[int, Place]) -> FolderState:
        after = max([self._box.uidnext, self._folder.uidnext if self._is_same else 1, *(uid + 1 for uid in new)])
        box = self._box
        return replace(self._folder, uidvalidity=box.uidvalidity, uidnext=after, modseq=box.modseq, messages=box.exists)

    @property
    def _is_same(self) -> bool:
        return self._box.uidvalidity == self._folder.uidvalidity

    async def _since(self, known: Collection[int]) -> tuple[dict[int, frozenset[str]], set[int]]:
        """Flags that may have changed, and UIDs that are gone as far as the server tells by itself."""
        last = self._folder.uidnext - 1
        if last < 1 or not known:
            return {}, set()
        if self._folder.modseq is None or self._box.modseq is None:
            flags = await self._flags(f"1:{last}")
            return flags, {uid for uid in known if uid <= last and uid not in flags}
        if self._folder.modseq == self._box.modseq:
            return {}, set()
        vanished = " VANISHED" if self._connection.has_qresync else ""
        self._box.gone.clear()
        flags = await self._flags(f"1:{last}", f"(CHANGEDSINCE {self._folder.modseq}{vanished})")
        return flags, {uid for uid in known if any(uid in uids for uids in self._box.gone)}

    async def _compared(self, known: Collection[int]) -> tuple[dict[int, frozenset[str]], set[int]]:
        """Of a renamed folder: what has another size or date than was known lies there by chance."""
        last = self._folder.uidnext - 1
        found = await self._described(f"1:{last}") if last >= 1 and known else {}
        before = await self._store.places_at([(self._folder.id, self._box.uidvalidity, uid) for uid in known])
        looks = {place.uid: (place.size, place.received_s) for place in before}
        same = {uid for uid, place in found.items() if looks.get(uid) == (place.size, place.received_s)}
        return {uid: found[uid].flags for uid in same}, {uid for uid in known if uid <= last and uid not in same}

    @property
    def _of_gmail(self) -> str:
        """Gmail's labels, where all mail is: elsewhere they leave out the folder itself."""
        is_all = self._folder.role is FolderRole.ALL and GMAIL in self._connection.capabilities
        return " X-GM-LABELS" if is_all else ""

    async def _flags(self, uids: str, modifier: str = "") -> dict[int, frozenset[str]]:
        found: dict[int, frozenset[str]] = {}
        whole = {"FLAGS", *self._of_gmail.split()}  # a server may tell of flags unasked, without the rest

        def take(response: ServerResponse) -> bool:
            items = fetched(response)
            if items is not None and whole <= items.items.keys():
                found[items.uid] = items.flags
            return items is not None or self._box.follow(response)

        def take_flags(lines: Sequence[FlagLine]) -> None:
            found.update((uid, flags_in(words)) for uid, words in lines)

        command = f"{uids} (UID FLAGS{self._of_gmail}) {modifier}".strip()
        await self._fetch(command, take, None if self._of_gmail else take_flags)
        return found

    async def _described(self, uids: str, *, lowest: int = 1, with_headers: bool = False) -> dict[int, Place]:
        """Places as the server describes them, without messages."""
        found: dict[int, Place] = {}
        has_email_id = "OBJECTID" in self._connection.capabilities

        def take(response: ServerResponse) -> bool:
            items = fetched(response)
            if items is None:
                return self._box.follow(response)
            if items.uid >= lowest and "RFC822.SIZE" in items.items:
                found[items.uid] = self._place(items)
            return True

        wanted = "UID FLAGS INTERNALDATE RFC822.SIZE"
        wanted += " EMAILID" if has_email_id else ""
        wanted += " X-GM-MSGID" if GMAIL in self._connection.capabilities else ""
        wanted += self._of_gmail
        wanted += " BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)]" if with_headers else ""
        await self._fetch(f"{uids} ({wanted})", take)
        return found

    def _place(self, items: FetchedItems) -> Place:
        email_id = items.items.get("EMAILID")
        head = items.items.get("BODY[HEADER.FIELDS (MESSAGE-ID)]")
        return Place(
            self._folder.id,
            self._box.uidvalidity,
            items.uid,
            items.flags,
            instant_of(items.items.get("INTERNALDATE")),
            as_number(items.items.get("RFC822.SIZE")) or 0,
            gmail_id(as_number(items.items.get("X-GM-MSGID"))),
            email_id=as_text(email_id[0])[:255] if isinstance(email_id, list) and email_id else "",
            header_id=header_id_of(head) if isinstance(head, bytes) else "",
        )

    def _undescribed(self, present: Collection[int], described: Mapping[int, Place]) -> dict[int, Place]:
        """Messages that the server lists and says nothing of, not even their flags. Each has an id of its own, so that
        it is listed as one that cannot be read, and holds up no other. It is taken to have come with the one before it.
        At Gmail, only the server knows a message's id."""
        lacking = sorted(set(present) - described.keys())
        if GMAIL in self._connection.capabilities:
            return {}
        numbered, found = replace(self._folder, uidvalidity=self._box.uidvalidity), dict[int, Place]()
        for uid in lacking[:_MOST_UNDESCRIBED]:
            received = max((place.received_s for each, place in described.items() if each < uid), default=0)
            key = numbered.id, numbered.uidvalidity, uid
            found[uid] = Place(*key, frozenset(), received, 0, unreadable_id(numbered, uid))
        return found

    async def _fetch(self, what: str, take: OnResponse, take_flags: OnFlags | None = None) -> None:
        most, command = 4 * self._box.exists + MOST_UNTAGGED, (b"UID FETCH", what.encode("ascii"))
        await self._connection.command(*command, most=most, take=take, take_flags=take_flags)

    async def _present(self) -> set[int]:
        """All UIDs. Raises unless they are as many as the server says that it holds."""
        found: set[int] = set()
        esearch = "ESEARCH" in self._connection.capabilities

        def take(response: ServerResponse) -> bool:
            if response.name == "ESEARCH":
                names = [as_text(each).upper() for each in response.values]
                if "ALL" in names[:-1]:
                    uids = UidSet.parse(response.values[names.index("ALL") + 1])
                    found.update(uids.in_order(2 * self._box.exists + MOST_UNTAGGED))
                return True
            if response.name == "SEARCH":
                found.update(uid for each in response.values if (uid := as_number(each)))
                return True
            return self._box.follow(response)

        command = b"UID SEARCH RETURN (ALL) ALL" if esearch else b"UID SEARCH ALL"
        await self._connection.command(command, take=take)
        if len(found) != self._box.exists:
            raise self._incomplete(len(found))
        return found

    def _incomplete(self, listed: int) -> MailboxUnavailable:
        host = self._connection.address.host
        return MailboxUnavailable(
            f"{host} says that the folder {self._folder.label_name!r} holds {self._box.exists:,} messages, and lists "
            f"{listed:,}. It is asked again later"
        )
