"""What the archiver needs of the archive: messages by their keys, and their bytes read back from disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from postroom.archive.certificates import Proof
from postroom.archive.model import ArchivedMessage
from postroom.archive.place import ArchivePlace, MailReader
from postroom.domain.errors import Fatal, PostroomError


class Doubt(Fatal):
    """The archiver met something that it did not expect, and stopped before removing anything more."""


def find_messages(archive: ArchivePlace, email: str, keys: Iterable[str]) -> dict[str, ArchivedMessage]:
    """The messages of these keys that the archive has."""
    with archive.reader() as reader:
        wanted = list(keys)
        found = reader.find_many(email, wanted)
        return {key: found[key] for key in wanted if key in found}


def read_back(archive: ArchivePlace, messages: Iterable[ArchivedMessage]) -> list[Proof]:
    """Read the bytes of each from disk, through connections of its own, and hash them. The first flaw is a doubt."""
    with archive.reader() as reader:
        return [_proof(reader, message) for message in messages]


def _proof(reader: MailReader, message: ArchivedMessage) -> Proof:
    try:
        found = reader.reread(message)
        if found is None:
            raise Fatal(f"it was in {message.shard} a moment ago and is not any more.")
        raw = reader.raw_of(found)
    except PostroomError as error:
        raise Doubt(
            f"Stopped before removing message {message.key}: {error.message} Nothing of its batch was removed. Run "
            "`postroom verify`, repair what it finds, let `postroom sync run` fetch what is missing, then start again."
        ) from error
    digest = hashlib.sha256(raw).hexdigest()
    gmail_id = found.gmail_id or ""
    return Proof(gmail_id, found.key, digest, len(raw), found.shard, found.row_id, found.provenance)
