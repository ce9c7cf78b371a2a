"""A message by what a person has of it: its key or the beginning of it, or its Message-ID in angle brackets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from postroom.archive.model import ArchivedMessage
from postroom.archive.reading import MESSAGE_COLUMNS, ArchiveReader
from postroom.domain.errors import BadInput, NotFound
from postroom.mail.bodies import Attachment
from postroom.mail.parsing import ParsedMail

SHORTEST_PREFIX = 8
_SHOWN = 5
MOST_FOUND = _SHOWN + 1
_KEY = re.compile(r"[0-9A-Za-z_-]+")


def find_message(archive: ArchiveReader, wanted: str, account: str | None = None) -> ArchivedMessage:
    """The one message that is meant; refuses what names none or several."""
    condition, parameters = condition_of(wanted)
    sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE {condition} ORDER BY id LIMIT {MOST_FOUND}"
    rows = ((shard, row) for shard in archive.shards(account) for row in shard.query(sql, parameters))
    return only(wanted, [shard.read_row(row) for shard, row in rows])


def attachment_of(parsed: ParsedMail, number: int) -> Attachment:
    if not 0 <= number < len(parsed.attachments):
        count = len(parsed.attachments)
        have = f"its attachments are numbered 0 to {count - 1}" if count else "it has none"
        raise NotFound("attachment", f"the message has no attachment {number}; {have}")
    return parsed.attachments[number]


def condition_of(wanted: str) -> tuple[str, tuple[str, ...]]:
    """What to ask of a message, as SQL."""
    if wanted.startswith("<") and wanted.endswith(">"):
        return "message_id = ?", (wanted,)
    if not _KEY.fullmatch(wanted):
        raise BadInput("id", f"{wanted!r} is neither a message's key nor a Message-ID in angle brackets")
    if len(wanted) < SHORTEST_PREFIX:
        return "key = ?", (wanted,)
    return "key >= ? AND key < ?", (wanted, wanted[:-1] + chr(ord(wanted[-1]) + 1))


def only(wanted: str, found: Sequence[ArchivedMessage]) -> ArchivedMessage:
    exact = [message for message in found if message.key == wanted]
    candidates = exact or found
    if not candidates:
        hint = (
            "" if len(wanted) >= SHORTEST_PREFIX else f" (a beginning must have {SHORTEST_PREFIX} characters or more)"
        )
        raise NotFound("id", f"the archive has no message {wanted}{hint}")
    if len(candidates) > 1:
        names = ", ".join(f"{message.key} ({message.account})" for message in candidates[:_SHOWN])
        raise BadInput("id", f"{wanted} is several messages: {names}; write more of the key, or use --account")
    return candidates[0]
