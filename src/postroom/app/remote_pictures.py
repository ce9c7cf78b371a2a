"""Remote pictures of mail, fetched when the owner asks for them: once, or always for a sender.

They are fetched by this process, never by the browser, and kept in memory for a while; a page gets them as part of the
message. A sender counts only where the receiving server authenticated the domain in From.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select

from postroom import audit
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import account_name
from postroom.archive.service import read_apart
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.mail import picture_senders
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotFound, PostroomError
from postroom.mail.addresses import canonical_address
from postroom.mail.authentication import Authentication, authentication_of
from postroom.mail.html import data_address, raster_of, remote_pictures
from postroom.mail.parsing import ParsedMail
from postroom.settings import Settings
from postroom.telemetry import logs
from postroom.web.fetching.fetcher import OwnerRequests, open_owner_requests

log = logs.get(__name__)

_LARGEST = 4 << 20
_LARGEST_TOGETHER = 12 << 20
_LONGEST_S = 25.0
"""For all pictures of a message: a person waits, and takes what has come by then."""
_AT_ONCE = 6
_LOADS_AT_ONCE = 2
_KEPT_BYTES = 64 << 20
_KEPT_MESSAGES = 50
_TABLE = picture_senders.c


@dataclass(frozen=True, slots=True)
class PictureSource:
    """What a message refers to, and who sent it."""

    addresses: tuple[str, ...]
    left_out: int
    sender: str | None
    """In its compared form; None if From names no one, or several."""
    is_authenticated: bool


@dataclass(frozen=True, slots=True)
class LoadedPictures:
    contents: Mapping[str, str]
    """By their address in the message, as `data:` addresses."""
    failed: int
    """Not downloaded, too large, or no picture."""
    left_out: int
    """There only to count readers, or beyond the most that are fetched."""

    @property
    def size(self) -> int:
        return sum(map(len, self.contents.values()))


@dataclass(frozen=True, slots=True)
class PictureSender:
    address: str
    allowed_by: str
    allowed_at: datetime


def list_senders(tx: Tx) -> list[PictureSender]:
    return [PictureSender(*row) for row in tx.execute(select(picture_senders).order_by(_TABLE.address)).all()]


def is_allowed(tx: Tx, sender: str) -> bool:
    return tx.execute(select(_TABLE.address).where(_TABLE.address == canonical_address(sender))).first() is not None


def allow_sender(tx: Tx, sender: str, who: Actor, now: datetime) -> PictureSender:
    values = {"allowed_by": f"{who.role} {who.name}", "allowed_at": now}
    row = insert(tx, picture_senders).values(address=sender, **values)
    if tx.execute(row.on_conflict_do_nothing().returning(_TABLE.address)).first() is not None:
        audit.record(tx, who, "pictures.allow", ("sender", sender), now)
    return _sender(tx, sender)


def forget_sender(tx: Tx, sender: str, who: Actor, now: datetime) -> PictureSender:
    gone = _sender(tx, canonical_address(sender))
    tx.execute(delete(picture_senders).where(_TABLE.address == gone.address))
    audit.record(tx, who, "pictures.forget", ("sender", gone.address), now)
    return gone


def _sender(tx: Tx, address: str) -> PictureSender:
    row = tx.execute(select(picture_senders).where(_TABLE.address == address)).one_or_none()
    if row is None:
        raise NotFound("sender", f"pictures from {address[:100]} are not loaded automatically")
    return PictureSender(*row)


class PictureLoader:
    """Fetches the pictures of messages and keeps them in memory."""

    def __init__(self, database: Database, archive: ArchiveBackend, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._archive = archive
        self._settings = settings
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], LoadedPictures] = OrderedDict()
        self._under_way: dict[tuple[str, str], asyncio.Lock] = {}
        self._loads = asyncio.Semaphore(_LOADS_AT_ONCE)

    def loaded(self, account: str, key: str) -> LoadedPictures | None:
        """What was fetched for a message since this process began; None: nothing, or it was dropped since."""
        return self._kept.get((account_name(account), key))

    async def source(self, account: str, key: str) -> PictureSource:
        """Parsed off the event loop."""
        servers = self._settings.connector.believed_servers

        def read(archive: MailReader) -> PictureSource:
            message = archive.message(account, key)
            if message is None:
                raise NotFound("key", f"the archive has no message {key} of {account}")
            return _source(archive.parsed(message), servers)

        return await read_apart(self._archive, read)

    async def to_show(self, account: str, key: str) -> LoadedPictures | None:
        """For a message that is opened: what was fetched, or is fetched now because its sender is allowed."""
        if (known := self.loaded(account, key)) is not None:
            return known
        if not await self._database.read(_has_senders):
            return None
        source = await self.source(account, key)
        sender = source.sender
        if sender is None or not source.is_authenticated or not source.addresses:
            return None
        if not await self._database.read(lambda tx: is_allowed(tx, sender)):
            return None
        return await self._load(account, key, source)

    async def load(self, account: str, key: str, who: Actor) -> LoadedPictures:
        """Because the owner asked for it; recorded before anything is fetched."""
        source = await self.source(account, key)
        if not source.addresses:
            raise BadInput("key", "this message has no remote pictures that can be loaded")
        now, after = self._clock.now(), {"pictures": len(source.addresses)}
        await self._database.write(
            lambda tx: audit.record(tx, who, "pictures.load", ("message", f"{account}/{key}"), now, after=after)
        )
        return await self._load(account, key, source)

    async def allow(self, account: str, key: str, who: Actor) -> PictureSender:
        """Always for the sender of this message; refused if the sender may be forged."""
        source = await self.source(account, key)
        sender, now = source.sender, self._clock.now()
        if sender is None or not source.is_authenticated:
            raise BadInput("key", "the sender of this message is not authenticated, so it could be anyone")
        return await self._database.write(lambda tx: allow_sender(tx, sender, who, now))

    async def _load(self, account: str, key: str, source: PictureSource) -> LoadedPictures:
        """One load of a message at a time: a second waits for the first and takes what that fetched."""
        place = (account_name(account), key)
        async with self._under_way.setdefault(place, asyncio.Lock()), self._loads:
            try:
                if (known := self.loaded(*place)) is None or known.failed:
                    known = await self._fetched(source)
                    self._keep(place, known)
                return known
            finally:
                self._under_way.pop(place, None)

    async def _fetched(self, source: PictureSource) -> LoadedPictures:
        async with open_owner_requests(self._settings.web) as requests:
            fetching = _Fetching(requests)
            found = await fetching.all(source.addresses)
        pixels = sum(1 for each in found.values() if each == _PIXEL)
        contents = {address: each for address, each in found.items() if each and each != _PIXEL}
        failed = len(source.addresses) - len(contents) - pixels
        return LoadedPictures(contents, failed, source.left_out + pixels)

    def _keep(self, place: tuple[str, str], pictures: LoadedPictures) -> None:
        self._kept[place] = pictures
        self._kept.move_to_end(place)
        while len(self._kept) > _KEPT_MESSAGES or sum(each.size for each in self._kept.values()) > _KEPT_BYTES:
            self._kept.popitem(last=False)


_PIXEL = "pixel"


class _Fetching:
    """The pictures of one message, a few at once, within their bounds together."""

    def __init__(self, requests: OwnerRequests) -> None:
        self._requests = requests
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._room = _LARGEST_TOGETHER
        self._found: dict[str, str] = {}

    async def all(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """By address: the content, or that it only counts readers. What failed, or took too long, is not in it."""
        try:
            async with asyncio.timeout(_LONGEST_S), asyncio.TaskGroup() as group:
                for address in addresses:
                    group.create_task(self._one(address))
        except TimeoutError:
            log.info("pictures.took_too_long", fetched=len(self._found), wanted=len(addresses))
        return self._found

    async def _one(self, address: str) -> None:
        async with self._turns:
            try:
                data = await self._requests.picture(address, largest=min(_LARGEST, self._room))
            except PostroomError as error:
                log.info("pictures.not_loaded", reason=type(error).__name__)
                return
        raster = raster_of(data)
        if raster is None or len(data) > self._room:
            return
        self._room -= len(data)
        self._found[address] = _PIXEL if raster.is_pixel else data_address(raster.media_type, data)


def _source(parsed: ParsedMail, servers: Sequence[str]) -> PictureSource:
    found = remote_pictures(parsed.html or "")
    senders = parsed.from_
    if len(senders) != 1:
        return PictureSource(found.addresses, found.left_out, None, is_authenticated=False)
    passed = authentication_of(parsed.headers, servers, senders[0].domain) is Authentication.PASSED
    return PictureSource(found.addresses, found.left_out, senders[0].canonical, passed)


def _has_senders(tx: Tx) -> bool:
    return tx.execute(select(_TABLE.address).limit(1)).first() is not None
