"""What the archiver asks and does at Gmail. Every change here can be repeated without harm."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from postroom.archive.certificates import Action, Removal
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Retryable
from postroom.gmail.client import GmailClient
from postroom.gmail.errors import Gone
from postroom.gmail.fetching import Failed, Got, Missing
from postroom.gmail.resources import Format
from postroom.sync.archiver.candidates import Doubt
from postroom.sync.archiver.selection import ALWAYS_KEPT, Policy
from postroom.sync.labels import LabelNames
from postroom.sync.listing import query_of
from postroom.sync.slices import EARLIEST_CUT, Slice

T = TypeVar("T")
ATTEMPTS = 6
_FIRST_BACK_OFF_S = 1.0
_LONGEST_BACK_OFF_S = 60.0
_DICE = random.Random()  # noqa: S311 - jitter, no secret


class Source:
    """One account's mailbox, for one policy."""

    def __init__(self, client: GmailClient, clock: Clock, policy: Policy, ids: Mapping[str, str]) -> None:
        self.client = client
        self.names = LabelNames(client)
        self._clock = clock
        self._removal = policy.removal
        self._label_id = ids.get(policy.removal.label.casefold(), "")
        kept = policy.keep_labels | ALWAYS_KEPT
        self._kept_ids = sorted({ids[name.casefold()] for name in kept if name.casefold() in ids})
        self.unknown_labels = sorted(name for name in kept if name.casefold() not in ids)
        """Labels that should keep mail here and that this mailbox does not have."""

    async def with_a_label_that_keeps(self, oldest: datetime, newest: datetime) -> set[str]:
        """Messages of this time that have such a label now, whatever the archive last heard. Cheap: listed, not got."""
        start, end = int(oldest.timestamp()), int(newest.timestamp()) + 2
        query = query_of(Slice(start if start > EARLIEST_CUT else 0, max(end, EARLIEST_CUT)))
        kept: set[str] = set()
        for label_id in self._kept_ids:
            kept |= await insist(self._clock, partial(self._listed, query, label_id))
        return kept

    async def _listed(self, query: str, label_id: str) -> set[str]:
        pages = self.client.list_messages(query, label_ids=[label_id], include_spam_trash=True)
        return {message.id async for page in pages for message in page.messages}

    async def labels_now(self, gmail_ids: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """The names of each message's labels at this moment; None for one that is no longer there."""
        found: dict[str, frozenset[str] | None] = {}
        for fetched in await self.client.get_messages(gmail_ids, Format.MINIMAL):
            match fetched:
                case Got(message):
                    found[message.id] = await self.names.names(message.label_ids)
                case Missing(message_id):
                    found[message_id] = None
                case Failed(message_id, error):
                    raise Doubt(
                        f"Stopped: Gmail could not say what became of message {message_id}: {error.message} Its "
                        "certificate is kept; the next run asks again."
                    ) from error
        return found

    async def remove(self, gmail_ids: Sequence[str]) -> None:
        """Returns once Gmail has said that it is done; ids that are not there any more count as done."""
        try:
            await insist(self._clock, partial(self._remove_all, gmail_ids))
        except Gone:  # one of them was, and nobody says which
            for gmail_id in gmail_ids:
                await insist(self._clock, partial(self._remove_one, gmail_id))

    async def _remove_all(self, gmail_ids: Sequence[str]) -> None:
        match self._removal.action:
            case Action.LABEL:
                await self.client.modify_messages(gmail_ids, remove=[self._label_id])
            case Action.TRASH:
                await self.client.modify_messages(gmail_ids, add=["TRASH"], remove=["INBOX"])
            case Action.DELETE:
                await self.client.delete_messages(gmail_ids)

    async def _remove_one(self, gmail_id: str) -> None:
        try:
            match self._removal.action:
                case Action.LABEL:
                    await self.client.modify_message(gmail_id, remove=[self._label_id])
                case Action.TRASH:
                    await self.client.trash_message(gmail_id)
                case Action.DELETE:
                    await self.client.delete_message(gmail_id)
        except Gone:
            return


async def insist(clock: Clock, call: Callable[[], Awaitable[T]]) -> T:
    """Again after what may pass; an answer that was lost is asked for again, because repeating is harmless."""
    for attempt in range(1, ATTEMPTS):
        try:
            return await call()
        except Retryable as error:
            told = 0.0 if error.retry_after is None else error.retry_after.total_seconds()
            pause = min(_FIRST_BACK_OFF_S * 2 ** (attempt - 1), _LONGEST_BACK_OFF_S) * _DICE.uniform(0.5, 1.0)
            await clock.sleep(max(pause, min(told, _LONGEST_BACK_OFF_S)))
    return await call()


async def open_source(client: GmailClient, clock: Clock, policy: Policy) -> Source:
    """Find the labels that the policy names; one to be removed has to exist."""
    labels = await insist(clock, client.list_labels)
    ids = {(label.id if label.is_system else label.name).casefold(): label.id for label in labels}
    _require_label(policy.removal, ids)
    return Source(client, clock, policy, ids)


def _require_label(removal: Removal, ids: Collection[str]) -> None:
    if removal.action is Action.LABEL and removal.label.casefold() not in ids:
        raise BadInput("label", f"the mailbox has no label {removal.label!r}; INBOX is the usual choice")
