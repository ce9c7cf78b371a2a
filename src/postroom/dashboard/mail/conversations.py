"""The mail list as conversations: one row for the messages of a conversation in a mailbox that a page has read.

In a place that labels decide (the inbox, a label), a row stands for all of the conversation there: its other messages
are looked up along an index, and it is on the page of its newest one only. In a search for words a row stands for
the matches on its page, because whether others match is not known without searching on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from postroom.app.serving import SharedServices
from postroom.archive.messages import ArchivedMessage
from postroom.archive.search import ShardProblem
from postroom.dashboard.mail import search
from postroom.dashboard.mail.current import LabelPlace, changes_under_way, label_place, labels_after

ME = "me"
MOST_LOOKED_UP = 500
"""Messages of all conversations of a page together."""
MOST_IN_ROW = 100
"""Messages that a row stands for: the newest."""
_MOST_ROUNDS = 4
"""Further pages that are read where all conversations of one are on earlier pages."""
_MOST_PEOPLE = 3
_CUT = "…"
ConversationName = tuple[str, str]
"""A mailbox, and the name of a conversation; where that is not indexed yet, its thread there."""
KnownNames = Mapping[tuple[str, str], str]
"""The names of the conversations of messages, by their mailboxes and keys, as far as they are indexed."""


@dataclass(frozen=True, slots=True)
class ConversationRow:
    newest: search.MailRow
    """Of those that the row stands for; it has the snippet."""
    thread: str
    """Of the newest, in its mailbox."""
    conversation: str | None
    """Its name, the same in all mailboxes; null while it is not indexed."""
    people: tuple[str, ...]
    """Who wrote, oldest first, short; `me` for an own address, and an ellipsis where some are left out."""
    keys: tuple[str, ...]
    """The messages that the row stands for, newest first; what is done to the row is done to these."""
    starred_keys: tuple[str, ...]
    labels: tuple[str, ...]
    has_attachment: bool
    is_unread: bool
    is_deleted_at_source: bool

    @property
    def account(self) -> str:
        return self.newest.account

    @property
    def is_starred(self) -> bool:
        return bool(self.starred_keys)


@dataclass(frozen=True, slots=True)
class ConversationList:
    items: Sequence[ConversationRow]
    next: str | None
    """The `after` of the next page; null on the last."""
    previous: str | None
    """The `before` of the page before; null on the first."""
    problems: tuple[ShardProblem, ...]
    """Archive files that could not be read, so that their mail is missing here."""
    accounts: Sequence[str]
    """The mailboxes that can be searched."""


async def list_conversations(shared: SharedServices, wanted: search.MailQuery) -> ConversationList:
    """A page reads as many messages as `limit` says; it has fewer rows where some belong together."""
    page = first = await _page(shared, wanted)
    for _ in range(_MOST_ROUNDS):
        if page.items or page.next is None or wanted.before is not None:
            break
        page = await _page(shared, wanted.model_copy(update={"after": page.next}))
    return replace(page, previous=first.previous)


async def _page(shared: SharedServices, wanted: search.MailQuery) -> ConversationList:
    others: Sequence[ArchivedMessage] = ()
    if wanted.tier is not None:
        found = await search.find_tier(shared, wanted, wanted.tier)
    else:
        found = await search.find_mail(shared, wanted)
        others = await _others(shared, found, wanted)
    messages = [*(hit.message for hit in found.hits), *others]
    names = await asyncio.to_thread(_known_names, shared, messages)
    rows = conversations(found.hits, others, found.accounts, names, is_first=found.previous is None)
    return ConversationList(rows, found.next, found.previous, found.problems, found.accounts)


def _known_names(shared: SharedServices, messages: Sequence[ArchivedMessage]) -> KnownNames:
    found = shared.search.conversation_names(messages)
    return {(each.account, each.key): name for each, name in zip(messages, found, strict=True) if name is not None}


def conversations(
    hits: Sequence[search.TieredHit],
    others: Sequence[ArchivedMessage],
    own: Collection[str],
    known: KnownNames,
    *,
    is_first: bool,
) -> list[ConversationRow]:
    """In the order of the hits. On a later page, those with a newer message are left out: an earlier page has them."""
    messages = [*others, *(hit.message for hit in hits)]
    in_thread = {_thread(each): known[each.account, each.key] for each in messages if (each.account, each.key) in known}

    def name_of(message: ArchivedMessage) -> ConversationName:
        indexed = known.get((message.account, message.key)) or in_thread.get(_thread(message))
        return message.account, indexed or message.thread_id

    by_name: defaultdict[ConversationName, list[search.TieredHit]] = defaultdict(list)
    for hit in hits:
        by_name[name_of(hit.message)].append(hit)
    members: defaultdict[ConversationName, dict[str, ArchivedMessage]] = defaultdict(dict)
    for message in messages:
        members[name_of(message)][message.key] = message
    rows: list[ConversationRow] = []
    for name, mine in by_name.items():
        together = sorted(members[name].values(), key=lambda message: message.row_id, reverse=True)
        if is_first or together[0].row_id <= hits[0].message.row_id:
            is_indexed = name[1] in known.values()
            rows.append(_row(mine[0], together[:MOST_IN_ROW], own, name[1] if is_indexed else None))
    return rows


def people_of(messages: Iterable[ArchivedMessage], own: Collection[str]) -> tuple[str, ...]:
    """The writers of these messages, in their order: the whole name of one, the first names of several."""
    names: dict[str, str] = {}
    for message in messages:
        sender = search.sender_of(message.sender)
        is_own = sender.address.lower() in own
        names.setdefault(ME if is_own else sender.address.lower(), ME if is_own else _honest_name(sender))
    if len(names) == 1:
        return tuple(names.values())
    short = [each if each == ME else _short(each) for each in names.values()]
    return tuple(short) if len(short) <= _MOST_PEOPLE else (short[0], _CUT, *short[1 - _MOST_PEOPLE :])


def _honest_name(sender: search.NamedAddress) -> str:
    """The address, if the name looks like another address, or like the owner."""
    poses = "@" in sender.name or ME in sender.name.casefold().split()
    return sender.address if poses or not sender.name else sender.name


def _short(name: str) -> str:
    """The first name: of `Ann Example` and of `Example, Ann`; of an address what stands before the @."""
    last, comma, first = name.partition(",")
    words = (first if comma and first.strip() else last).split()
    return (words[0].partition("@")[0] or words[0]) if words else name


def _row(
    first: search.TieredHit, together: Sequence[ArchivedMessage], own: Collection[str], conversation: str | None
) -> ConversationRow:
    labels = dict.fromkeys(label for message in together for label in message.labels)
    return ConversationRow(
        newest=search.row_of(first.hit, first.tier),
        thread=first.message.thread_id,
        conversation=conversation,
        people=people_of(reversed(together), own),
        keys=tuple(message.key for message in together),
        starred_keys=tuple(message.key for message in together if search.STARRED in message.labels),
        labels=tuple(label for label in labels if label not in (search.UNREAD, search.STARRED)),
        has_attachment=any(message.has_attachment for message in together),
        is_unread=any(search.UNREAD in message.labels for message in together),
        is_deleted_at_source=all(message.deleted_at_source is not None for message in together),
    )


async def _others(shared: SharedServices, found: search.FoundMail, wanted: search.MailQuery) -> list[ArchivedMessage]:
    """The messages of these conversations that are in the same place, whichever page they are on."""
    now = shared.app.clock.now()
    place = label_place(wanted.whole_query, now)
    if not found.hits or not place.is_all:
        return []
    read = await asyncio.to_thread(_read, shared, [hit.message for hit in found.hits])
    return await _still_here(shared, read, place, now)


def _read(shared: SharedServices, hits: Sequence[ArchivedMessage]) -> list[ArchivedMessage]:
    """By the index of conversations, and by the threads of the mailbox, which have the mail of the last minutes."""
    threads: defaultdict[str, set[str]] = defaultdict(set)
    names: defaultdict[str, set[str]] = defaultdict(set)
    for hit, name in zip(hits, shared.search.conversation_names(hits), strict=True):
        threads[hit.account].add(hit.thread_id)
        names[hit.account].update([name] if name else [])
    newest = MOST_LOOKED_UP // len(threads)
    found: dict[tuple[str, str], ArchivedMessage] = {}
    for account, ids in threads.items():
        in_threads = shared.search.threads(account, sorted(ids), newest=newest)
        indexed = shared.search.in_conversations(sorted(names[account]), account=account, newest=newest)
        found |= {(each.account, each.key): each for each in (*in_threads.messages, *indexed.messages)}
    return list(found.values())


async def _still_here(
    shared: SharedServices, read: Sequence[ArchivedMessage], place: LabelPlace, now: datetime
) -> list[ArchivedMessage]:
    changes = await shared.app.database.read(lambda tx: changes_under_way(tx, read, now))
    current = [
        replace(each, labels=labels_after(each.labels, changes.get((each.account, each.gmail_id or ""), ())))
        for each in read
    ]
    return [each for each in current if place.has(each.labels)]


def _thread(message: ArchivedMessage) -> tuple[str, str]:
    return message.account, message.thread_id
