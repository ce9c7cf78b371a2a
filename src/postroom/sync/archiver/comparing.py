"""Mail that did not come from Gmail's API is compared with what Gmail holds, byte by byte, before it may be removed.

The API's message is stored: where the bytes are equal that is noted with them, where they differ (a Takeout writes
some headers in its own way) the API's take their place. Either way, what is certified afterwards is what Gmail had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from postroom.archive.account_store import AccountStore
from postroom.archive.model import ArchivedMessage, IncomingMail, Provenance, StoreOutcome
from postroom.archive.sharing import SharedArchive
from postroom.domain.errors import PostroomError
from postroom.gmail.fetching import Failed, Got, Missing
from postroom.gmail.resources import Message
from postroom.sync.archiver.source import Source


@dataclass(frozen=True, slots=True)
class AtSource:
    """What Gmail says of a message, which a Takeout may say otherwise."""

    date: datetime
    labels: frozenset[str]


@dataclass(slots=True)
class Compared:
    """What was found for each message that was asked for."""

    found: dict[str, AtSource] = field(default_factory=dict)
    """Those that are stored now as Gmail holds them."""
    gone: list[str] = field(default_factory=list)
    failed: dict[str, PostroomError] = field(default_factory=dict)
    replaced: int = 0


async def compare(source: Source, archive: SharedArchive, email: str, messages: Sequence[ArchivedMessage]) -> Compared:
    """Raises OwnedElsewhere, before anything is fetched, while another process writes to the archive."""
    compared = Compared()
    ids = [message.gmail_id for message in messages if message.gmail_id]
    size = source.client.batch_size
    async with archive.store(email, "postroom archive run") as store:
        for start in range(0, len(ids), size):
            await _compare_some(source, store, ids[start : start + size], compared)
    return compared


async def _compare_some(source: Source, store: AccountStore, ids: Sequence[str], compared: Compared) -> None:
    got: list[Message] = []
    for fetched in await source.client.get_messages(ids):
        match fetched:
            case Got(message):
                got.append(message)
            case Missing(message_id):
                compared.gone.append(message_id)
            case Failed(message_id, error):
                compared.failed[message_id] = error
    stored = await store.store([_incoming(message) for message in got])
    compared.replaced += sum(each.outcome is StoreOutcome.REPLACED for each in stored)
    for message in got:
        if message.internal_date is not None:
            labels = await source.names.names(message.label_ids)
            compared.found[message.id] = AtSource(message.internal_date, labels)


def _incoming(message: Message) -> IncomingMail:
    """The bytes alone: what labels there are now is the sync's to record."""
    return IncomingMail(
        raw=message.raw or b"",
        provenance=Provenance.API,
        gmail_id=message.id,
        thread_id=message.thread_id or None,
        received=message.internal_date,
    )
