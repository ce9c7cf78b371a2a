"""A query of `mail.query` over an IMAP mailbox: what the places tell is decided here, words are searched by the server.

The answer may have a little more than the query asks for, never less: what cannot be said without reading a message,
such as whether it has an attachment, counts as a match both ways.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from postroom.mail.query import with_whole_dates
from postroom.mail.query.nodes import (
    And,
    Anywhere,
    HasAttachment,
    HasConversation,
    HasUserLabel,
    InConversation,
    Labelled,
    MessageId,
    Node,
    Not,
    Or,
    Received,
    Similar,
    Size,
    Text,
    TextField,
)
from postroom.mailboxes.errors import CallRefused
from postroom.mailboxes.imap.connection import ImapConnection, Part
from postroom.mailboxes.imap.folders import open_folder
from postroom.mailboxes.imap.places import SYSTEM_LABELS, FolderState, Place, PlaceKey
from postroom.mailboxes.imap.wire import Literal, ServerResponse, as_number, quoted

_FIELDS = {
    TextField.ANY: b"TEXT",
    TextField.FROM: b"FROM",
    TextField.TO: b"TO",
    TextField.CC: b"CC",
    TextField.BCC: b"BCC",
    TextField.SUBJECT: b"SUBJECT",
    TextField.LIST: b"HEADER LIST-ID",
}


def searched_nodes(node: Node) -> Iterator[Text | MessageId]:
    """The parts of a query that the server has to search for."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from searched_nodes(part)
        case Not(part):
            yield from searched_nodes(part)
        case Text(field) if field in _FIELDS:
            yield node
        case MessageId():
            yield node
        case _:
            return


async def search_folder(
    connection: ImapConnection, folder: FolderState, nodes: Collection[Text | MessageId]
) -> dict[Text | MessageId, set[PlaceKey]]:
    """Where in a folder the server finds each; a node that it refuses to search for is left out."""
    await open_folder(connection, folder.wire)
    found: dict[Text | MessageId, set[PlaceKey]] = {}
    for node in nodes:
        with suppress(CallRefused):
            found[node] = await _searched(connection, folder, _criterion(node))
    return found


async def search_gmail(connection: ImapConnection, folder: FolderState, query: str) -> set[PlaceKey]:
    """Where in a folder Gmail finds what a query in its own language asks for."""
    await open_folder(connection, folder.wire)
    charset = [] if query.isascii() else [b"CHARSET UTF-8"]
    return await _searched(connection, folder, [*charset, b"X-GM-RAW", *_words(with_whole_dates(query))])


async def _searched(connection: ImapConnection, folder: FolderState, criterion: Sequence[Part]) -> set[PlaceKey]:
    uids: set[int] = set()

    def take(response: ServerResponse) -> bool:
        if response.name == "SEARCH":
            uids.update(uid for each in response.values if (uid := as_number(each)))
        return response.name == "SEARCH"

    await connection.command(b"UID SEARCH", *criterion, take=take)
    return {(folder.id, folder.uidvalidity, uid) for uid in uids}


def _criterion(node: Text | MessageId) -> Sequence[Part]:
    if isinstance(node, MessageId):
        return b"HEADER MESSAGE-ID", *_words(node.value.strip("<>"))
    words = node.words.removesuffix("*") if node.is_prefix else node.words
    charset = [] if words.isascii() else [b"CHARSET UTF-8"]
    return *charset, _FIELDS[node.field], *_words(words)


def _words(text: str) -> Sequence[Part]:
    is_plain = text.isascii() and text.isprintable()
    return [quoted(text) if is_plain else Literal(text.encode())]


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """What is known of the message at a place."""

    places: Sequence[Place]
    """All of its places; only the one where its bytes were not read yet."""
    labels: frozenset[str]
    names: frozenset[str]
    """Of its labels, in small letters."""
    found: Mapping[Text | MessageId, Collection[PlaceKey]]

    @property
    def is_known(self) -> bool:
        return self.places[0].message_id is not None


def may_match(node: Node, facts: PlaceFacts) -> bool:
    """False only where the message certainly does not match."""
    return _judged(node, facts) is not False


def _judged(node: Node, facts: PlaceFacts) -> bool | None:
    """None where it cannot be said."""
    match node:
        case And(parts):
            judged = [_judged(part, facts) for part in parts]
            return False if False in judged else None if None in judged else True
        case Or(parts):
            judged = [_judged(part, facts) for part in parts]
            return True if True in judged else None if None in judged else False
        case Not(part):
            inner = _judged(part, facts)
            return None if inner is None else not inner
        case Received() | Size():
            return _in_bounds(node, facts)
        case Labelled(label):
            return _or_unknown(label in facts.labels or label.casefold() in facts.names, facts)
        case HasUserLabel():
            return _or_unknown(not facts.labels <= set(SYSTEM_LABELS), facts)
        case Text() | MessageId():
            keys = facts.found.get(node)
            # Servers find parts of words, so that what they find only may match, also under a negation.
            return None if keys is None or any(place.key in keys for place in facts.places) else False
        case Anywhere() | Similar():
            return isinstance(node, Anywhere)  # what is similar, only the archive can tell
        case HasAttachment() | InConversation() | HasConversation():
            return None


def _or_unknown(is_so: bool, facts: PlaceFacts) -> bool | None:
    """A message that was not read yet may also lie elsewhere, and have more labels than are known."""
    return True if is_so else False if facts.is_known else None


def _in_bounds(node: Received | Size, facts: PlaceFacts) -> bool:
    if isinstance(node, Received):
        times = [place.received_s * 1_000 for place in facts.places]
        start, end = node.start, node.end
        return any((start is None or start <= each) and (end is None or each < end) for each in times)
    size = facts.places[0].size
    return (node.over is None or size > node.over) and (node.under is None or size < node.under)
