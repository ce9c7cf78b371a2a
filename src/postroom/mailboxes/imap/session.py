"""What all lanes of one IMAP account share: connections, pace, and the places of its messages.

`refresh` brings the places up to date with the server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

from postroom.domain.clock import Clock
from postroom.mailboxes.errors import (
    CallRefused,
    LabelGone,
    MailboxThrottled,
    MailboxUnavailable,
    PermissionMissing,
)
from postroom.mailboxes.imap.changing import CopiedPlaces
from postroom.mailboxes.imap.connection import ImapConnection, ImapLogin, Patience, open_connection
from postroom.mailboxes.imap.folders import (
    FolderListing,
    FolderLook,
    is_nonexistent,
    is_unchanged,
    list_folders,
    plan_folders,
)
from postroom.mailboxes.imap.places import FolderChange, Folders, FolderState, PlaceStore
from postroom.mailboxes.imap.reading import BytesReader, Connect, RawSpool, side_by_side
from postroom.mailboxes.limiter import Limiter
from postroom.mailboxes.ports import PriorityLane
from postroom.telemetry import logs

log = logs.get(__name__)

_LONGEST_PAUSE_S = 60.0
_WORTH_ANOTHER = 8
"""So many folders to look into are worth the login of a second connection."""
_ATTEMPTS = 4
_OWN_TROUBLE = (LabelGone, PermissionMissing, CallRefused)
"""Of one folder, which then stays as it is known."""


class ConnectionPool:
    """The connections of one account: a few at most, because providers count them. `login` is asked for each new one,
    so that a login that was renewed meanwhile is used."""

    def __init__(
        self,
        login: Callable[[], ImapLogin],
        patience: Patience = Patience(),  # noqa: B008 - frozen
        most: int = 3,
    ) -> None:
        self._login = login
        self._patience = patience
        self._free: list[ImapConnection] = []
        self._slots = asyncio.Semaphore(most)

    @asynccontextmanager
    async def use(self, folder: str | None = None) -> AsyncIterator[ImapConnection]:
        """A connection for as long as the block lasts; one that has this folder selected, if there is one."""
        async with self._slots:
            connection = await self._usable(folder) or await open_connection(self._login(), self._patience)
            try:
                yield connection
            finally:
                if connection.is_open:
                    self._free.append(connection)
                else:
                    connection.abort()

    async def _usable(self, folder: str | None) -> ImapConnection | None:
        while (connection := self._choose(folder)) is not None:
            has_ended = True
            try:
                has_ended = await connection.has_ended()
            finally:
                if has_ended:
                    connection.abort()
            if not has_ended:
                return connection
        return None

    def _choose(self, folder: str | None) -> ImapConnection | None:
        for dead in [each for each in self._free if not each.is_open]:
            self._free.remove(dead)
            dead.abort()
        best = next((each for each in self._free if folder is not None and each.selected == folder), None)
        if best is None and self._free:
            best = self._free[-1]
        if best is not None:
            self._free.remove(best)
        return best

    async def close(self) -> None:
        free, self._free = self._free, []
        for connection in free:
            await connection.close()


@dataclass(frozen=True, slots=True)
class RefreshMark:
    """A refresh that is over."""

    number: int
    at: float
    """When it began, by the monotonic clock."""


class ImapSession:
    """`login` gives the login as it is now; the account and its server stay the same."""

    def __init__(
        self,
        login: Callable[[], ImapLogin],
        store: PlaceStore,
        limiter: Limiter,
        clock: Clock,
        patience: Patience | None = None,
    ) -> None:
        patience = patience or Patience()
        first = login()
        self.email = first.email
        self.host = first.address.host
        self.store = store
        self.limiter = limiter
        self.max_size = patience.max_literal
        self.spool = RawSpool()
        self._pool = ConnectionPool(login, patience)
        self._clock = clock
        self._refreshing = asyncio.Lock()
        self._begun = 0
        self._last: RefreshMark | None = None
        self._last_of_flags: RefreshMark | None = None
        """The last that compared the flags in all folders."""
        self._folders: Folders = {}
        """As the last refresh found them."""

    @asynccontextmanager
    async def connect(self, lane: PriorityLane, folder: str | None = None) -> AsyncIterator[ImapConnection]:
        """A connection in its turn, and what the pace learns from its use."""
        tuner = self.limiter.gate.tuner
        pause = tuner.hold_until - self._clock.monotonic()
        if pause > _LONGEST_PAUSE_S:
            raise MailboxThrottled(
                f"{self.host} asked for fewer calls; they go on in {pause:.0f} s",
                retry_after=timedelta(seconds=pause),
            )
        async with self.limiter.admit(lane, 1):
            began = self._clock.monotonic()
            try:
                async with self._pool.use(folder) as connection:
                    yield connection
            except MailboxThrottled:
                tuner.throttled(began, self._clock.monotonic())
                raise
            except MailboxUnavailable:
                self._last = self._last_of_flags = None  # the server may be another than it was, or numbered anew
                tuner.failed(began, self._clock.monotonic())
                raise
            tuner.succeeded(began, self._clock.monotonic())

    def now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1_000)

    def connector(self, lane: PriorityLane) -> Connect:
        return lambda folder: self.connect(lane, folder)

    def reader(self, lane: PriorityLane) -> BytesReader:
        return BytesReader(self.connector(lane), self.store, self.spool, self.max_size)

    async def close(self) -> None:
        await self._pool.close()
        self.spool.close()

    async def refresh(
        self,
        lane: PriorityLane,
        *,
        flags_in: Collection[str] | None = (),
        copied: CopiedPlaces | None = None,
        max_age_s: float = 0.0,
    ) -> Folders:
        """Bring the places up to date; returns the folders.

        Where the server does not count changes, flags are compared only in the folders `flags_in`; None: in all.
        A refresh that another caller began after this call, or at most `max_age_s` ago, serves as well.
        """
        asked = self._begun
        async with self._refreshing:
            if not copied and self._is_served(asked, flags_in, max_age_s):
                return self._folders
            for _ in range(_ATTEMPTS):
                self._begun += 1
                mark = RefreshMark(self._begun, self._clock.monotonic())
                folders = await self._refresh_once(lane, flags_in, copied or {})
                if folders is not None:
                    self._last, self._last_of_flags = mark, mark if flags_in is None else self._last_of_flags
                    self._folders = folders
                    return folders
        raise MailboxUnavailable("Other processes keep changing what is known of this mailbox; it is tried again")

    def _is_served(self, asked: int, flags_in: Collection[str] | None, max_age_s: float) -> bool:
        mark = self._last if flags_in is not None and not flags_in else self._last_of_flags
        if mark is None:
            return False
        return mark.number > asked or self._clock.monotonic() - mark.at < max_age_s

    async def _refresh_once(
        self, lane: PriorityLane, flags_in: Collection[str] | None, copied: CopiedPlaces
    ) -> Folders | None:
        """The folders; None where another process recorded a change of the same folder first."""
        async with self.connect(lane) as connection:
            listing = await list_folders(connection)
        if "INBOX" not in listing.folders:
            raise MailboxUnavailable(f"{self.host} lists no inbox, which every mailbox has")
        known: Folders = await self.store.folders()
        plan = plan_folders(known, listing)
        if plan.put:
            await self.store.put_folders(plan.put, ())
            known = await self.store.folders()
        lost = [folder for folder in plan.gone if await self._is_gone(lane, folder)]
        gone = {folder.id for folder in lost}
        found: list[FolderChange] = [await self._emptied(folder) for folder in lost]
        stale = [
            (folder, is_renamed)
            for folder in known.values()
            if folder.id not in gone and _is_stale(folder, listing, flags_in, is_renamed := folder.id in plan.renamed)
        ]
        found += [_with_copies(change, copied) for change in await self._look_into(lane, stale, flags_in)]
        await self._settle_moves(lane, found)
        if found and not await self.store.apply(found):
            return None
        await self.store.put_folders((), gone)
        return await self.store.folders() if found or gone else known

    async def _is_gone(self, lane: PriorityLane, folder: FolderState) -> bool:
        """A listing may lack a folder by mistake, and its mail would count as deleted."""
        async with self.connect(lane) as connection:
            is_gone = await is_nonexistent(connection, folder.wire)
        if not is_gone:
            log.warning("imap.folder_not_listed", folder=folder.id)
        return is_gone

    async def _emptied(self, folder: FolderState) -> FolderChange:
        after = replace(folder, uidvalidity=0, uidnext=1, modseq=None, messages=0)
        return FolderChange(folder, after, gone=await self.store.places(folder.id))

    async def _look_into(
        self, lane: PriorityLane, folders: Sequence[tuple[FolderState, bool]], flags_in: Collection[str] | None
    ) -> list[FolderChange]:
        """One after the other on each connection. `folders` are those to look into, and whether each was renamed."""
        found: list[FolderChange] = []
        left = deque(folders)

        async def work() -> None:
            try:
                while left:
                    async with self.connect(lane, left[0][0].wire) as connection:
                        while left and connection.is_open:
                            folder, is_renamed = left.popleft()
                            with_flags = flags_in is None or folder.id in flags_in
                            change = await self._look(connection, folder, is_renamed, with_flags)
                            found.extend([] if change is None else [change])
            finally:
                left.clear()  # after an error the others begin nothing new

        await side_by_side(work, 2 if len(folders) >= _WORTH_ANOTHER else 1)
        return found

    async def _look(
        self, connection: ImapConnection, folder: FolderState, is_renamed: bool, with_flags: bool
    ) -> FolderChange | None:
        """None where nothing changed."""
        try:
            look = FolderLook(connection, folder, self.store)
            change = await look.changes(was_renamed=is_renamed, with_flags=with_flags)
        except _OWN_TROUBLE as error:
            connection.abort()  # what it has selected may be another folder by now
            log.warning("imap.folder_not_read", folder=folder.id, problem=error.message)
            return None
        is_same = change.after == folder and not (change.new or change.flags or change.gone)
        return None if is_same else change

    async def _settle_moves(self, lane: PriorityLane, found: Sequence[FolderChange]) -> None:
        """What vanished may lie elsewhere by now: the messages of the same size are read before it counts as gone."""
        sizes = {place.size for change in found for place in change.gone if place.message_id is not None}
        coming = [change for change in found if any(place.message_id is None for place in change.new)]
        if not sizes:
            return
        for change in coming:
            await self.store.expect(change)
        unknown = await self.store.unknown(sizes=sizes)
        if unknown:
            folders = {**await self.store.folders(), **{change.after.id: change.after for change in found}}
            await self.reader(lane).identify(unknown, folders)


def _is_stale(folder: FolderState, listing: FolderListing, flags_in: Collection[str] | None, is_renamed: bool) -> bool:
    status = listing.statuses.get(folder.wire)
    if is_renamed or status is None:
        return True
    if is_unchanged(folder, status):
        return False
    is_deep = flags_in is None or folder.id in flags_in or status.modseq
    counts = (status.uidvalidity, status.uidnext, status.messages)
    return bool(is_deep) or counts != (folder.uidvalidity, folder.uidnext, folder.messages)


def _with_copies(change: FolderChange, copied: CopiedPlaces) -> FolderChange:
    if not any(place.key in copied for place in change.new):
        return change
    new = [
        place._replace(message_id=copied[place.key], is_provisional=True)
        if place.message_id is None and place.key in copied
        else place
        for place in change.new
    ]
    return replace(change, new=new)
