"""Many messages at once: the same action on each.

Each message gets an ordinary action of its own, which can be undone by itself. What cannot be acted on is named with
the reason, and does not keep the others from being done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from postroom.actions import requests
from postroom.actions.requests import ActionTarget
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.layout import account_name
from postroom.archive.messages import ArchivedMessage
from postroom.archive.service import read_apart
from postroom.db import Database, Tx
from postroom.domain.actions import FOR_GOOD
from postroom.domain.errors import BadInput

ONE_BY_ONE = FOR_GOOD
"""What cannot be taken back is not done to many messages with one press."""


class MailKey(NamedTuple):
    mailbox: str
    key: str


async def find_targets(
    database: Database, archive: ArchiveBackend, wanted: Sequence[MailKey]
) -> dict[MailKey, ActionTarget | str]:
    """For each message the target, or the reason why it cannot be acted on."""
    found = await read_apart(archive, lambda reader: _archived(reader, wanted))
    return await database.read(lambda tx: {each: _target(tx, found.get(each)) for each in wanted})


def _archived(reader: MailReader, wanted: Sequence[MailKey]) -> Mapping[MailKey, ArchivedMessage]:
    found: dict[MailKey, ArchivedMessage] = {}
    for mailbox in dict.fromkeys(each.mailbox for each in wanted):
        keys = [each.key for each in wanted if each.mailbox == mailbox]
        here = reader.find_many(account_name(mailbox), keys)
        found |= {MailKey(mailbox, key): message for key, message in here.items()}
    return found


def _target(tx: Tx, message: ArchivedMessage | None) -> ActionTarget | str:
    if message is None:
        return "it is not in the archive"
    try:
        return requests.archived_target(tx, message)
    except BadInput as error:
        return error.problem
