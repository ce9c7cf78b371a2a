"""The mailbox that mail is put back into: what lies there already, its labels, and messages read back.

A message is recognised by its bytes alone. A Message-ID, a date or an id only says where to look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from postroom.actions.restore.items import ReadBack, RestoreItem, Wanted, fingerprint
from postroom.domain.errors import PostroomError
from postroom.mail.query import format_query
from postroom.mail.query.nodes import MessageId
from postroom.mailboxes import errors, protocol
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.reader import sort_results

_MOST_CANDIDATES = 50
_GIVEN_BY_PROVIDERS = frozenset({"INBOX", "SENT", "DRAFT", "CHAT", "SPAM", "TRASH", "UNREAD", "STARRED", "IMPORTANT"})
_NOTHING_DONE = (
    errors.CallRefused,
    errors.Gone,
    errors.LabelGone,
    errors.LoginNeeded,
    errors.MailboxThrottled,
    errors.MailboxUnavailable,
    errors.PermissionMissing,
)
"""What a mailbox raises before it does anything, unless the error says otherwise."""
TRASH = "TRASH"


@dataclass(frozen=True, slots=True)
class ToPlace:
    """A message of the archive with its bytes, on its way into the mailbox."""

    item: RestoreItem
    raw: bytes
    sent_at: datetime | None
    """As its Date header says."""

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.item.sha256, fingerprint(self.raw), self.item.date, self.item.labels)


@dataclass(frozen=True, slots=True)
class Located:
    id: str
    found: ReadBack

    @property
    def is_in_trash(self) -> bool:
        return TRASH in self.found.labels


class TargetMailbox:
    def __init__(self, mailbox: protocol.Mailbox) -> None:
        self.mailbox = mailbox
        self._names = LabelNames(mailbox)
        self._ids: dict[str, str] | None = None
        self._refused_labels: set[str] = set()
        self._refused_threads: set[str] = set()
        self.has_threads = True
        """As far as is known."""

    async def cursor(self) -> str:
        """A place in the mailbox's history from which everything that is added later can be found."""
        return (await self.mailbox.identity()).cursor

    # What lies there

    async def find(self, wanted: Sequence[ToPlace]) -> dict[int, Located]:
        """By position, where each of these lies already; one that is not in the trash is preferred."""
        known = [[each.item.source_id] if each.item.source_id else [] for each in wanted]
        found = await self._same(wanted, known)
        rest = [each for each in wanted if each.item.position not in found]
        return found | await self._same(rest, await asyncio.gather(*map(self._candidates, rest)))

    async def _same(self, wanted: Sequence[ToPlace], candidates: Sequence[Sequence[str]]) -> dict[int, Located]:
        """By position, those that have the bytes of one of their candidates."""
        read = await self.read({message_id for ids in candidates for message_id in ids})
        found: dict[int, Located] = {}
        for each, ids in zip(wanted, candidates, strict=True):
            here = [Located(message_id, read[message_id]) for message_id in ids if message_id in read]
            same = [located for located in here if located.found.has_bytes_of(each.wanted)]
            if same:
                found[each.item.position] = min(same, key=lambda located: located.is_in_trash)
        return found

    async def _candidates(self, each: ToPlace) -> list[str]:
        if (query := _by_message_id(each.item.message_id)) is not None:
            return await self._listed(None, query)
        dates = {each.item.date} | ({each.sent_at} if each.sent_at else set())
        spans = [protocol.Span(int(date.timestamp()) - 1, int(date.timestamp()) + 2) for date in sorted(dates)]
        return [message_id for span in spans for message_id in await self._listed(span, "")]

    async def _listed(self, span: protocol.Span | None, query: str) -> list[str]:
        ids: list[str] = []
        async for page in self.mailbox.list(span, query=query):
            ids += page.ids
            if len(ids) >= _MOST_CANDIDATES:
                break
        return ids[:_MOST_CANDIDATES]

    async def added_since(self, cursor: str) -> list[str]:
        """Ids of what was added after this place in the history; none where the mailbox has forgotten it."""
        ids: list[str] = []
        try:
            async for page in self.mailbox.changes(cursor):
                ids += page.added
        except errors.HistoryExpired:
            return []
        return list(dict.fromkeys(ids))

    async def read(self, ids: Collection[str]) -> dict[str, ReadBack]:
        """Whole messages, by id; without those that are no longer there. Raises where one could not be read."""
        if not ids:
            return {}
        results = sort_results(await self.mailbox.fetch(sorted(ids)))
        for error in results.failed.values():
            raise error
        return {message.id: await self._read_back(message) for message in results.got}

    async def _read_back(self, message: protocol.RemoteMessage) -> ReadBack:
        names = await self._names.names(message.label_ids)
        return ReadBack(message.raw or b"", message.received, names, message.thread_id)

    # What is put there

    async def append_all(self, placed: Sequence[tuple[ToPlace, str | None]]) -> Sequence[protocol.AppendResult]:
        """Messages, each with its conversation: one that the mailbox does not have, or does not accept, is left out.
        Raises only before the first of them is begun."""
        new = [
            protocol.NewMessage(
                each.raw, frozenset(await self.label_ids(each.item.labels)), self._usable(thread), each.item.date
            )
            for each, thread in placed
        ]
        results = list(await self.mailbox.append_all(new))
        refused = [
            number
            for number, result in enumerate(results)
            if new[number].thread_id is not None and isinstance(result, errors.Gone | errors.CallRefused)
        ]
        if refused:
            self._refused_threads.update(str(new[number].thread_id) for number in refused)
            for number, result in zip(refused, await self._append_alone([new[each] for each in refused]), strict=True):
                results[number] = result
        return results

    async def _append_alone(self, messages: Sequence[protocol.NewMessage]) -> Sequence[protocol.AppendResult]:
        """Without their conversations. Others were added before, so nothing is raised."""
        try:
            return await self.mailbox.append_all([replace(each, thread_id=None) for each in messages])
        except PostroomError as error:
            return [error] * len(messages)

    def _usable(self, thread_id: str | None) -> str | None:
        return None if not thread_id or thread_id in self._refused_threads else thread_id

    async def threads_of(self, ids: Sequence[str]) -> dict[str, str]:
        """By id, the conversations that the mailbox put these into; none where it has no conversations."""
        if not ids:
            return {}
        results = sort_results(await self.mailbox.fetch(ids, protocol.Detail.FLAGS))
        for error in results.failed.values():
            raise error
        if results.got:
            self.has_threads = any(message.thread_id for message in results.got)
        return {message.id: message.thread_id for message in results.got if message.thread_id}

    async def take_out_of_trash(self, item: RestoreItem) -> None:
        """Raises Gone where it no longer is in the mailbox."""
        await self.mailbox.modify([str(item.target_id)], protocol.MailboxChange(move=protocol.Move.RESTORE))
        await self.add_labels(str(item.target_id), item.labels)

    async def add_labels(self, message_id: str, names: Iterable[str]) -> None:
        labels = frozenset(await self.label_ids(names)) - {"SENT"}
        if labels:
            await self.mailbox.modify([message_id], protocol.MailboxChange(add=labels))

    async def move_to_trash(self, ids: Sequence[str]) -> None:
        """Those that are gone are passed over."""
        change = protocol.MailboxChange(move=protocol.Move.TRASH)
        try:
            await self.mailbox.modify(ids, change)
        except errors.Gone:
            for each in ids if len(ids) > 1 else ():
                await self.move_to_trash([each])

    async def label_ids(self, names: Iterable[str]) -> list[str]:
        """Their ids here. One of the owner's own labels is made where it is missing; what cannot be made is left out,
        and the certificate says so."""
        if self._ids is None:
            await self.list_labels()
        known: Mapping[str, str] = self._ids or {}
        return [known[name.casefold()] for name in names if name.casefold() in known]

    async def list_labels(self) -> None:
        self._ids = {label.name.casefold(): label.id for label in await self.mailbox.labels()}

    async def make_labels(self, names: Iterable[str]) -> None:
        if self._ids is None:
            await self.list_labels()
        known = self._ids if self._ids is not None else {}
        for name in dict.fromkeys(names):
            folded = name.casefold()
            if folded in known or folded in self._refused_labels or not _is_own(name):
                continue
            try:
                known[folded] = (await self.mailbox.create_label(name)).id
            except (errors.CallRefused, errors.LabelGone):
                self._refused_labels.add(folded)


def _is_own(name: str) -> bool:
    """Not a label that only a provider has."""
    return name not in _GIVEN_BY_PROVIDERS and not name.startswith("CATEGORY_")


def _by_message_id(message_id: str | None) -> str | None:
    """The search for it; None where it has none, or one that cannot be searched for."""
    value = (message_id or "").strip().strip("<>")
    if not value or not value.isascii() or not value.isprintable() or any(char in value for char in ' "(){}'):
        return None
    return format_query(MessageId(value))


def did_not_happen(error: PostroomError) -> bool:
    """Whether the mailbox has certainly not done what was asked, so that nothing has to be looked for."""
    return isinstance(error, _NOTHING_DONE) and not error.may_have_happened
