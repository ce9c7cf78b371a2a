"""The message that is answered or passed on, as it came: from the archive where it is, else from the mailbox."""

from __future__ import annotations

import asyncio

from postroom.archive.place import ArchivePlace
from postroom.domain.errors import Fatal, PostroomError
from postroom.gmail.client import GmailClient
from postroom.gmail.errors import Gone
from postroom.telemetry import logs

log = logs.get(__name__)


class Originals:
    def __init__(self, archive: ArchivePlace | None) -> None:
        self._archive = archive

    async def raw(self, client: GmailClient, email: str, gmail_id: str, archive_key: str | None) -> bytes:
        """The exact bytes; Fatal where neither has them any more."""
        stored = await asyncio.to_thread(self._stored, email, archive_key or gmail_id)
        if stored is not None:
            return stored
        try:
            fetched = await client.get_message(gmail_id)
        except Gone:
            raise Fatal("The message is no longer in the mailbox, and the archive does not have it.") from None
        return fetched.raw or b""

    def _stored(self, email: str, key: str) -> bytes | None:
        """An archive that cannot be read, or is on another host, is no reason not to ask Gmail."""
        if self._archive is None:
            return None
        try:
            with self._archive.reader() as archive:
                return archive.raw(email, key)
        except PostroomError as error:
            log.warning("outbound.archive_not_read", error=error.message)
            return None
