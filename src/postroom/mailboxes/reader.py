"""Reads messages of a mailbox into a sink: the archive itself (sync), or the archive behind the Switchboard's tools
(connectors). A message that cannot be fetched or stored does not affect the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from postroom.domain.errors import PostroomError
from postroom.mailboxes import protocol
from postroom.mailboxes.errors import MailboxThrottled, MailboxUnreachable
from postroom.mailboxes.labels import LabelNames

OUTAGE = (MailboxThrottled, MailboxUnreachable)
"""Errors of the pace or the network, even where one message has them: never held against it."""
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class SortedResults:
    got: list[protocol.RemoteMessage] = field(default_factory=list)
    gone: list[protocol.MessageId] = field(default_factory=list)
    failed: dict[protocol.MessageId, PostroomError] = field(default_factory=dict)


def sort_results(results: Iterable[protocol.FetchResult]) -> SortedResults:
    found = SortedResults()
    for each in results:
        match each:
            case protocol.Got(message):
                found.got.append(message)
            case protocol.MissingMessage(message_id):
                found.gone.append(message_id)
            case protocol.Failed(message_id, error):
                found.failed[message_id] = error
    return found


async def look_at(mailbox: protocol.Mailbox, ids: Sequence[protocol.MessageId]) -> SortedResults:
    """What the mailbox says of these now, without their headers and bytes. Raises during an outage."""
    found = sort_results(await mailbox.fetch(ids, protocol.Detail.FLAGS)) if ids else SortedResults()
    for error in found.failed.values():
        if isinstance(error, OUTAGE):
            raise error
    return found


async def gone_of(mailbox: protocol.Mailbox, ids: Sequence[protocol.MessageId]) -> list[protocol.MessageId]:
    """Those that the mailbox no longer has.

    Each is asked for, because a listing may miss messages that arrive or move meanwhile. A message that cannot be
    fetched counts as present.
    """
    return (await look_at(mailbox, ids)).gone


@dataclass(frozen=True, slots=True)
class Compared:
    relabelled: Mapping[protocol.MessageId, frozenset[str]]
    """By name, all labels of those whose labels are not what was known."""
    gone: Sequence[protocol.MessageId]


async def compare(
    mailbox: protocol.Mailbox, names: LabelNames, known: Mapping[protocol.MessageId, frozenset[str]]
) -> Compared:
    """Compare the labels that are known, by name, with those at the mailbox. A message that fails keeps what is known
    of it."""
    found = await look_at(mailbox, list(known))
    labels = {message.id: await names.names(message.label_ids) for message in found.got}
    return Compared({key: now for key, now in labels.items() if now != known[key]}, found.gone)


class MailSink(Protocol[R_co]):
    async def store(self, mails: Sequence[tuple[protocol.RemoteMessage, frozenset[str]]]) -> Sequence[R_co]:
        """Store messages with the names of their labels; a result for each, in order, once they are on disk."""

    def problem(self, error: Exception) -> PostroomError:
        """The error of the one message that could not be stored.

        Raises the given error itself where no message is to blame.
        """


@dataclass(frozen=True, slots=True)
class FetchedMail(Generic[R]):
    """What became of each id that was asked for."""

    stored: Mapping[protocol.MessageId, R]
    """What the sink said, in the order asked for."""
    gone: Sequence[protocol.MessageId]
    """No longer in the mailbox."""
    unfetched: Mapping[protocol.MessageId, PostroomError]
    unstored: Mapping[protocol.MessageId, PostroomError]
    refusal: Exception | None = None
    """What the sink said to all of them together, where it did not take them."""

    @property
    def failed(self) -> dict[protocol.MessageId, PostroomError]:
        return {**self.unfetched, **self.unstored}


class MailboxReader(Generic[R]):
    def __init__(self, mailbox: protocol.Mailbox, sink: MailSink[R], names: LabelNames) -> None:
        self._mailbox = mailbox
        self._sink = sink
        self._names = names

    async def fetch(self, ids: Sequence[protocol.MessageId]) -> FetchedMail[R]:
        """Fetch these and store them; every id has a result, and what is stored is on disk when this returns."""
        found = sort_results(await self._mailbox.fetch(ids)) if ids else SortedResults()
        mails = [(message, await self._names.names(message.label_ids)) for message in found.got]
        stored: dict[protocol.MessageId, R] = {}
        unstored: dict[protocol.MessageId, PostroomError] = {}
        refusal = await self._store(mails, stored, unstored) if mails else None
        return FetchedMail(stored, found.gone, found.failed, unstored, refusal)

    async def _store(
        self,
        mails: Sequence[tuple[protocol.RemoteMessage, frozenset[str]]],
        stored: dict[protocol.MessageId, R],
        unstored: dict[protocol.MessageId, PostroomError],
    ) -> Exception | None:
        """All together; where that fails, one by one, to find out which cannot be stored."""
        try:
            results = await self._sink.store(mails)
        except Exception as error:
            problem = self._sink.problem(error)
            if len(mails) == 1:
                unstored[mails[0][0].id] = problem
            else:
                for mail in mails:
                    await self._store([mail], stored, unstored)
            return error
        stored.update((message.id, result) for (message, _), result in zip(mails, results, strict=True))
        return None
