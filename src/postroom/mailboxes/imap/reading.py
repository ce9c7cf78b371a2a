"""Reads messages' bytes by their places, and keeps those that were read to learn their ids until they are asked for.

A message that the server cannot give holds up no other: it is asked for by itself, and what fails then is its error.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from postroom.domain.errors import PostroomError
from postroom.mailboxes.errors import CallRefused, LabelGone, LoginNeeded, MailboxThrottled, MailboxUnavailable
from postroom.mailboxes.errors import MailboxUnreachable as Unreachable
from postroom.mailboxes.imap.connection import MOST_UNTAGGED, ImapConnection
from postroom.mailboxes.imap.folders import FetchedItems, fetched, open_folder
from postroom.mailboxes.imap.places import (
    Folders,
    FolderState,
    IdentifiedPlace,
    Place,
    PlaceKey,
    PlaceStore,
    digest,
    header_id_of,
    unreadable_id,
)
from postroom.mailboxes.imap.wire import ServerResponse, UidSet, WireError, as_number
from postroom.mailboxes.protocol import MessageId

_MOST_AT_ONCE = 100
_BYTES_AT_ONCE = 8 << 20
_BYTES_AHEAD = 2 << 20
"""Of one folder. All folders together should fit into the spool."""
_RECORDED_AT_ONCE = 1_000
_CONNECTIONS = 2
"""Folders are read on so many at once; one of the pool's is left for what a person asks for meanwhile."""
_OF_ALL = (MailboxThrottled, Unreachable, LoginNeeded, LabelGone)
"""Errors that are no message's own."""

Connect = Callable[[str | None], AbstractAsyncContextManager[ImapConnection]]
ReadResult = bytes | PostroomError
"""A message's bytes, or why they could not be read."""


class NumberedAnew(MailboxUnavailable):
    """A folder's UIDVALIDITY is another than it was: what is known of its places is past."""


class RawSpool:
    """Bytes of messages, the first few in memory and more in a temporary file that no other process sees, up to a
    size; the oldest give way. What is not here is read from the server again."""

    def __init__(self, most: int = 512 << 20, most_in_memory: int = 16 << 20) -> None:
        self._file = tempfile.TemporaryFile(prefix="postroom-")  # noqa: SIM115 - closed by `close`
        self._most = most
        self._most_in_memory = most_in_memory
        self._held: dict[MessageId, bytes] = {}
        self._in_memory = 0
        self._kept: dict[MessageId, tuple[int, int]] = {}
        self._end = 0
        self.filling = asyncio.Lock()

    def put(self, message_id: MessageId, raw: bytes) -> None:
        if message_id in self._held or message_id in self._kept or len(raw) > self._most:
            return
        if self._in_memory + len(raw) <= self._most_in_memory:
            self._held[message_id] = raw
            self._in_memory += len(raw)
            return
        if self._end + len(raw) > self._most:
            self._kept.clear()
            self._end = 0
        self._file.seek(self._end)
        self._file.write(raw)
        self._kept[message_id] = (self._end, len(raw))
        self._end += len(raw)

    def take(self, message_id: MessageId) -> bytes | None:
        held = self._held.pop(message_id, None)
        if held is not None:
            self._in_memory -= len(held)
            return held
        place = self._kept.pop(message_id, None)
        if place is None:
            return None
        self._file.seek(place[0])
        raw = self._file.read(place[1])
        if not self._kept:
            self._end = 0
            self._file.truncate(0)
        return raw

    def close(self) -> None:
        self._held.clear()
        self._file.close()


async def side_by_side(work: Callable[[], Awaitable[None]], at_once: int) -> None:
    """Run `work` so many times at once. Raises an error when all of them have ended."""
    for error in await asyncio.gather(*(work() for _ in range(at_once)), return_exceptions=True):
        if error is not None:
            raise error


class BytesReader:
    """`connect` gives a connection for a block, one that has the folder selected if there is one."""

    def __init__(self, connect: Connect, store: PlaceStore, spool: RawSpool, max_size: int) -> None:
        self._connect = connect
        self._store = store
        self._spool = spool
        self._max_size = max_size

    async def identify_ahead(self, places: Sequence[Place], folders: Folders) -> dict[PlaceKey, MessageId]:
        """As `identify`, for a listing of the whole mailbox: what follows in the same folders is read with them. One
        such reading at a time, so that none reads what another is about to."""
        async with self._spool.filling:
            now = await self._store.places_at([place.key for place in places])
            unread = [place for place in now if place.message_id is None]
            known = {place.key: place.message_id for place in now if place.message_id is not None}
            return known | await self.identify([*unread, *await self._following(unread)], folders)

    async def identify(self, places: Sequence[Place], folders: Folders) -> dict[PlaceKey, MessageId]:
        """Read the bytes at these places and record which messages they are; the bytes are kept for `RawSpool.take`.

        One that cannot be read gets an id of its own, if it has none, so that it is known and tried again. One
        that is gone meanwhile stays without a message; the next look into its folder finds out.
        """
        known: dict[PlaceKey, MessageId] = {}
        read: list[IdentifiedPlace] = []
        left = _portions(places, folders)

        async def record() -> None:
            full = read[:]
            read.clear()
            known.update(await self._record(full))

        async def work() -> None:
            try:
                for folder, some in left:
                    read.extend(self._identified(folder, some, await self._read(folder, some, b"BODY.PEEK[]")))
                    if len(read) >= _RECORDED_AT_ONCE:
                        await record()
            finally:
                left.close()  # after an error the others begin nothing new

        try:
            await side_by_side(work, _CONNECTIONS)
        except PostroomError:
            await record()
            raise
        await record()
        return known

    async def _following(self, places: Sequence[Place]) -> list[Place]:
        """The next unread places of the folders that have few among these."""
        left: dict[str, int] = defaultdict(lambda: _BYTES_AHEAD)
        count: dict[str, int] = defaultdict(int)
        for place in places:
            left[place.folder_id] -= place.size
            count[place.folder_id] += 1
        wanted = [folder_id for folder_id, some in count.items() if left[folder_id] > 0 and some < _MOST_AT_ONCE]
        if not wanted:
            return []
        since = min(place.received_s for place in places)
        found, taken = list[Place](), {place.key for place in places}
        for place in await self._store.following(wanted, since, _MOST_AT_ONCE * len(wanted)):
            if place.key in taken:
                continue
            left[place.folder_id] -= place.size
            if left[place.folder_id] > 0 and count[place.folder_id] < _MOST_AT_ONCE:
                count[place.folder_id] += 1
                found.append(place)
        return found

    def _identified(
        self, folder: FolderState, places: Sequence[Place], results: Mapping[int, ReadResult]
    ) -> Iterator[IdentifiedPlace]:
        for place in places:
            match results.get(place.uid):
                case None:
                    continue
                case NumberedAnew() as error:
                    raise error  # none of them is where it was: the folder has to be looked into again
                case PostroomError() if place.message_id is not None:
                    continue  # what it was taken for stays, and stays in doubt
                case PostroomError():
                    yield IdentifiedPlace(place, unreadable_id(folder, place.uid), place.header_id)
                case raw:
                    message_id = digest(raw)
                    self._spool.put(message_id, raw)
                    yield IdentifiedPlace(place, message_id, header_id_of(raw[: 1 << 18]))

    async def _record(self, found: Sequence[IdentifiedPlace]) -> dict[PlaceKey, MessageId]:
        if found:
            await self._store.identify(found)
        return {each.place.key: each.message_id for each in found}

    async def read(
        self, places: Sequence[Place], folders: Folders, item: bytes = b"BODY.PEEK[]"
    ) -> dict[PlaceKey, ReadResult]:
        """The bytes, or the headers, at these places; without those that are gone."""
        found: dict[PlaceKey, ReadResult] = {}
        for folder, some in _portions(places, folders):
            results = await self._read(folder, some, item)
            found |= {place.key: results[place.uid] for place in some if place.uid in results}
        return found

    async def _read(self, folder: FolderState, places: Sequence[Place], item: bytes) -> dict[int, ReadResult]:
        """Together; where that fails, one by one, to find out which cannot be read."""
        results: dict[int, ReadResult] = {}
        fitting = []
        for place in places:
            if place.size > self._max_size:
                reason = f"The message has {place.size:,} bytes, more than the {self._max_size:,} that are read"
                results[place.uid] = CallRefused(reason, status=0, reason="too_large")
            else:
                fitting.append(place.uid)
        if not fitting:
            return results
        try:
            async with self._opened(folder) as connection:
                results |= await self._together(connection, fitting, item)
            left = [uid for uid in fitting if uid not in results]
            return results | await self._left_out(folder, left, item) if left else results
        except _OF_ALL:
            raise
        except (CallRefused, MailboxUnavailable):
            for uid in fitting:
                results |= await self._alone(folder, uid, item)
            return results

    async def _left_out(self, folder: FolderState, uids: Sequence[int], item: bytes) -> dict[int, ReadResult]:
        """Messages that an answer lacked, asked for once more. One that the server holds and does not give cannot be
        read, though it may not even give its flags; one that it does not hold is gone.

        A connection that selected the folder earlier may not show yet what came since, so the folder is selected again,
        and one connection answers all of this."""
        async with self._opened(folder, again=True) as connection:
            found = await self._together(connection, uids, item)
            left = [uid for uid in uids if uid not in found]
            held = await self._held(connection, left) if left else set()
        reason = f"The server lists the message in {folder.label_name!r} and does not give its bytes"
        return found | {uid: MailboxUnavailable(reason) for uid in left if uid in held}

    async def _held(self, connection: ImapConnection, uids: Sequence[int]) -> set[int]:
        """Those of the UIDs that the server says to have, by their flags or in a search."""
        held: set[int] = set()

        def take(response: ServerResponse) -> bool:
            items = fetched(response)
            held.update(() if items is None else [items.uid])
            return items is not None

        await self._fetch(connection, UidSet.of(uids), b"FLAGS", take)
        if not (unsaid := [uid for uid in uids if uid not in held]):
            return held
        answer = await connection.command(b"UID SEARCH UID", str(UidSet.of(unsaid)).encode("ascii"))
        numbers = (as_number(each) for response in answer.named("SEARCH") for each in response.values)
        return held | {uid for uid in numbers if uid is not None and uid in unsaid}

    async def _alone(self, folder: FolderState, uid: int, item: bytes) -> Mapping[int, ReadResult]:
        try:
            async with self._opened(folder) as connection:
                return await self._together(connection, [uid], item)
        except _OF_ALL:
            raise
        except (CallRefused, MailboxUnavailable) as error:
            async with self._connect(None) as connection:
                await connection.command(b"NOOP")  # raises if it is the server that fails, and not the message
            return {uid: error}

    async def _together(self, connection: ImapConnection, uids: Iterable[int], item: bytes) -> dict[int, ReadResult]:
        wanted = UidSet.of(uids)
        found: dict[int, ReadResult] = {}
        kept = 0
        most = self._max_size + 2 * _BYTES_AT_ONCE

        def take(response: ServerResponse) -> bool:
            nonlocal kept
            items = fetched(response)
            if items is None:
                return False
            data = _body(items)
            if data is not None and items.uid in wanted and items.uid not in found:
                found[items.uid] = data
                kept += len(data)
                if kept > most:
                    raise WireError(f"more than {most:,} bytes for messages of fewer")
            return True

        await self._fetch(connection, wanted, item, take)
        return found

    async def _fetch(
        self, connection: ImapConnection, wanted: UidSet, item: bytes, take: Callable[[ServerResponse], bool]
    ) -> None:
        command = (b"UID FETCH", str(wanted).encode("ascii"), b"(UID " + item + b")")
        await connection.command(*command, most=len(wanted) * 4 + MOST_UNTAGGED, take=take)

    @asynccontextmanager
    async def _opened(self, folder: FolderState, *, again: bool = False) -> AsyncIterator[ImapConnection]:
        """A connection that has the folder selected, numbered as it is known; selected now, if it has to be `again`."""
        async with self._connect(folder.wire) as connection:
            if again or (connection.selected, connection.uidvalidity) != (folder.wire, folder.uidvalidity):
                box = await open_folder(connection, folder.wire)
                if box.uidvalidity != folder.uidvalidity:
                    raise NumberedAnew(f"The folder {folder.label_name!r} was numbered anew meanwhile")
            yield connection


def _body(items: FetchedItems) -> bytes | None:
    for name, value in items.items.items():
        if name.startswith("BODY[") and isinstance(value, bytes):
            return value
    return None


def portions_of(
    places: Sequence[Place], most: int = _MOST_AT_ONCE, most_bytes: int = _BYTES_AT_ONCE
) -> list[list[Place]]:
    """So many that are well read at once: few in number, and small together."""
    portions: list[list[Place]] = []
    size = 0
    for place in places:
        if not portions or len(portions[-1]) >= most or size + place.size > most_bytes:
            portions.append([])
            size = 0
        portions[-1].append(place)
        size += place.size
    return portions


def _portions(places: Sequence[Place], folders: Folders) -> Generator[tuple[FolderState, list[Place]]]:
    """By folder; without places of a numbering that is past."""
    by_folder: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        folder = folders.get(place.folder_id)
        if folder is not None and folder.uidvalidity == place.uidvalidity:
            by_folder[place.folder_id].append(place)
    for folder_id, listed in by_folder.items():
        for some in portions_of(listed):
            yield folders[folder_id], some
