"""One archived message: headers, text, safe HTML, attachments, its conversation, and what was decided and done.

Everything is bounded, whatever the message contains; omissions are stated, and the original can be downloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeVar

from sqlalchemy import select

from postroom.accounts.account import list_accounts
from postroom.actions import browsing, undo
from postroom.actions.browsing import ActionFilter
from postroom.actions.requests import require_in_mailbox
from postroom.app.remote_pictures import LoadedPictures, PictureLoader, is_allowed
from postroom.app.serving import SharedServices
from postroom.archive.backend import MailReader
from postroom.archive.conversations.forest import ConversationPerson
from postroom.archive.messages import ArchivedAttachment, ArchivedMessage, Provenance, account_name
from postroom.archive.search import ArchivedConversation, SearchHit, ShardProblem
from postroom.dashboard.actions.queries import ActionRow, DecisionMade, addresses, decision_about, row_of
from postroom.dashboard.display.foreign_content import SafeHtml, safe_html
from postroom.dashboard.mail.current import changes_under_way, labels_after
from postroom.dashboard.mail.search import GMAIL, MailQuery, NamedAddress, sender_of
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.money import Micros
from postroom.domain.terms import Tier
from postroom.mail.addresses import Address
from postroom.mail.authentication import Authentication, authentication_of
from postroom.mail.charsets import decode_words
from postroom.mail.headers import Headers
from postroom.mail.parsing import ParsedMail, date_problem
from postroom.mail.unsubscribing import UnsubscribeOffer, unsubscribe_offer
from postroom.triage.records import spent_on
from postroom.triage.rules.facts import MessageFacts
from postroom.triage.rules.trial import facts_in

T = TypeVar("T")

MOST_ADDRESSES = 200
MOST_OF_A_THREAD = 100
MOST_PEOPLE = 50
LONGEST_TEXT = 200_000
_MOST_HEADERS = 200
_MOST_ATTACHMENTS = 200
_LONGEST_HEADER = 2_000
_LONGEST_IN_THREAD = 3_000
_FOUND_WITHIN_S = 1.0
_MOST_RELATED = 5


@dataclass(frozen=True, slots=True)
class AddressList:
    shown: tuple[NamedAddress, ...]
    left_out: int
    """How many more there are."""


@dataclass(frozen=True, slots=True)
class MailHeader:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class MessageDetail:
    account: str
    key: str
    message_id: str | None
    gmail_id: str | None
    """Its id in the mailbox; null where it was imported from a file."""
    thread_id: str
    date: datetime
    """When the mailbox received it."""
    sent_at: datetime | None
    """The time of its Date header."""
    date_problem: str | None
    """Why that time does not count; null where it may be true."""
    subject: str
    sender: AddressList
    reply_to: AddressList
    to: AddressList
    cc: AddressList
    bcc: AddressList
    labels: tuple[str, ...]
    size: int
    provenance: Provenance
    deleted_at_source: datetime | None
    text: str
    """The plain body; where there is none, the words of the HTML."""
    is_text_cut: bool
    html: SafeHtml | None
    attachments: tuple[ArchivedAttachment, ...]
    headers: tuple[MailHeader, ...]
    are_headers_cut: bool
    problems: tuple[str, ...]
    """Parsing issues."""
    trouble: str | None
    """Why only a few headers could be parsed."""
    authentication: Authentication
    """What the receiving server says of the domain in From; unknown where From names several."""
    unsubscribe: UnsubscribeOffer | None
    """How to leave the list that sent it."""


@dataclass(frozen=True, slots=True)
class ThreadEntry:
    account: str
    key: str
    date: datetime
    sender: NamedAddress
    subject: str
    has_attachment: bool
    labels: tuple[str, ...]
    text: str
    """The beginning of its text."""
    is_text_cut: bool


@dataclass(frozen=True, slots=True)
class MailConversation:
    subject: str
    name: str | None
    """For a search with `thread:`; null while it is not indexed."""
    count: int
    """Of all its messages, in all mailboxes; copies of one are counted once."""
    people: Sequence[ConversationPerson]
    """How many messages each wrote and received, those who wrote most first."""
    entries: Sequence[ThreadEntry]
    """Oldest first."""
    before: int | None
    """The `before` of the older messages; null if there are none."""
    problems: tuple[ShardProblem, ...]


async def read_message(shared: SharedServices, account: str, key: str) -> MessageDetail:
    servers = shared.app.settings.connector.believed_servers

    def read(archive: MailReader, message: ArchivedMessage) -> MessageDetail:
        attachments = tuple(islice(archive.attachments_of(message), _MOST_ATTACHMENTS))
        return _message_detail(message, archive.parsed(message), attachments, servers)

    return await _read(shared, account, key, read)


async def read_headers(shared: SharedServices, account: str, key: str) -> tuple[Headers, frozenset[str]]:
    """Its headers, and its labels."""

    def read(archive: MailReader, message: ArchivedMessage) -> tuple[Headers, frozenset[str]]:
        return archive.headers_of(message), frozenset(message.labels)

    return await _read(shared, account, key, read)


async def read_facts(shared: SharedServices, account: str, key: str) -> MessageFacts:
    """What rules may know of it."""
    return await _read(shared, account, key, facts_in)


async def read_raw(shared: SharedServices, account: str, key: str) -> bytes:
    """The exact bytes."""
    return await _read(shared, account, key, lambda archive, message: archive.raw_of(message))


async def read_attachment(shared: SharedServices, account: str, key: str, number: int) -> tuple[str, bytes]:
    """Its name and its content."""

    def read(archive: MailReader, message: ArchivedMessage) -> tuple[str, bytes]:
        attachment = archive.parsed(message).attachment(number)
        return attachment.filename or f"attachment-{number}", attachment.content()

    return await _read(shared, account, key, read)


async def read_html(
    shared: SharedServices, account: str, key: str, pictures: Mapping[str, str] | None = None
) -> SafeHtml:
    """Only the HTML body, for the frame that shows it, with the remote pictures that were fetched."""

    def read(archive: MailReader, message: ArchivedMessage) -> SafeHtml:
        return safe_html(archive.parsed(message).html or "", folds_quotes=True, pictures=pictures)

    return await _read(shared, account, key, read)


async def read_conversation(
    shared: SharedServices, account: str, key: str, before: int | None = None, only: str | None = None
) -> MailConversation:
    """The messages of a message's conversation, in all mailboxes or only in one; of a very long one the newest, or
    those before a place."""
    message = await _find(shared, account, key)
    most = MOST_OF_A_THREAD
    accounts = None if only is None else [only]
    thread = await asyncio.to_thread(
        shared.search.conversation, message, accounts=accounts, newest=most + 1, before=before
    )
    ids = sorted((one.row_id for one in thread.messages), reverse=True)
    start = ids[most] + 1 if len(ids) > most else None  # so that the first that is left out begins the next part
    shown = [one for one in thread.messages if start is None or one.row_id >= start]
    entries = await shared.archive.read_apart(lambda archive: [_entry(archive, one) for one in shown])
    people = thread.people[:MOST_PEOPLE]
    return MailConversation(message.subject, thread.name, thread.count, people, entries, start, thread.problems)


async def conversation_of(shared: SharedServices, letter: MessageDetail, only: str | None) -> ArchivedConversation:
    """The newest messages of its conversation, as a list shows them."""
    message = await _find(shared, letter.account, letter.key)
    accounts = None if only is None else [only]
    return await asyncio.to_thread(shared.search.conversation, message, accounts=accounts, newest=MOST_OF_A_THREAD)


async def related_to(shared: SharedServices, letter: MessageDetail) -> Sequence[SearchHit]:
    """Mail of other conversations that means much the same; none without the `meaning` extra."""

    def look() -> Sequence[SearchHit]:
        message = shared.search.message(letter.account, letter.key)
        return () if message is None else shared.search.related(message, _MOST_RELATED)

    return await asyncio.to_thread(look)


async def around(
    shared: SharedServices, letter: MessageDetail, wanted: MailQuery
) -> tuple[ArchivedMessage | None, ArchivedMessage | None]:
    """What stands before and after it in a list: the next newer message and the next older."""
    accounts = None if wanted.account is None else [wanted.account]

    def look() -> tuple[ArchivedMessage | None, ArchivedMessage | None]:
        message = shared.search.message(letter.account, letter.key)
        if message is None:
            return None, None
        return shared.search.around(wanted.whole_query, message, accounts=accounts, patience_s=_FOUND_WITHIN_S)

    try:
        return await asyncio.to_thread(look)
    except BadInput:  # a list that does not exist, or that takes too long
        return None, None


async def _find(shared: SharedServices, account: str, key: str) -> ArchivedMessage:
    message = await asyncio.to_thread(shared.search.message, account, key)
    if message is None:
        raise NotFound("message", f"the archive has no message {key} of {account}")
    return message


async def _read(shared: SharedServices, account: str, key: str, work: Callable[[MailReader, ArchivedMessage], T]) -> T:
    """Off the event loop: bytes are unpacked, parsed and sanitised there too."""
    message = await _find(shared, account, key)
    return await shared.archive.read_apart(lambda archive: work(archive, message))


def _message_detail(
    message: ArchivedMessage,
    parsed: ParsedMail,
    attachments: tuple[ArchivedAttachment, ...],
    servers: Collection[str],
) -> MessageDetail:
    text = parsed.best_text
    return MessageDetail(
        account=message.account,
        key=message.key,
        message_id=None if parsed.message_id is None else without_surrogates(parsed.message_id),
        gmail_id=message.gmail_id,
        thread_id=message.thread_id,
        date=message.date,
        sent_at=parsed.date,
        date_problem=date_problem(parsed.date, message.date),
        subject=without_surrogates(parsed.subject),
        sender=_addresses(parsed.from_),
        reply_to=_addresses(parsed.reply_to),
        to=_addresses(parsed.to),
        cc=_addresses(parsed.cc),
        bcc=_addresses(parsed.bcc),
        labels=message.labels,
        size=message.size,
        provenance=message.provenance,
        deleted_at_source=message.deleted_at_source,
        text=without_surrogates(text[:LONGEST_TEXT]),
        is_text_cut=len(text) > LONGEST_TEXT,
        html=None if not parsed.html or parsed.html.isspace() else safe_html(parsed.html, folds_quotes=True),
        attachments=attachments,
        headers=tuple(_header(name, value) for name, value in parsed.headers.pairs[:_MOST_HEADERS]),
        are_headers_cut=len(parsed.headers) > _MOST_HEADERS,
        problems=() if parsed.trouble else tuple(without_surrogates(problem) for problem in parsed.problems),
        trouble=parsed.trouble,
        authentication=_authentication(parsed, servers),
        unsubscribe=unsubscribe_offer(parsed.headers, servers),
    )


def _authentication(parsed: ParsedMail, servers: Collection[str]) -> Authentication:
    if len(parsed.from_) != 1:
        return Authentication.UNKNOWN
    return authentication_of(parsed.headers, servers, parsed.from_[0].domain)


def _header(name: str, value: str) -> MailHeader:
    return MailHeader(
        without_surrogates(name), without_surrogates(decode_words(value[: 2 * _LONGEST_HEADER]))[:_LONGEST_HEADER]
    )


def _addresses(found: tuple[Address, ...]) -> AddressList:
    shown = tuple(
        NamedAddress(without_surrogates(one.display_name), without_surrogates(one.address))
        for one in found[:MOST_ADDRESSES]
    )
    return AddressList(shown, len(found) - len(shown))


def _entry(archive: MailReader, message: ArchivedMessage) -> ThreadEntry:
    text = archive.body_of(message)
    return ThreadEntry(
        account=message.account,
        key=message.key,
        date=message.date,
        sender=sender_of(message.sender),
        subject=message.subject,
        has_attachment=message.has_attachment,
        labels=message.labels,
        text=text[:_LONGEST_IN_THREAD].strip(),
        is_text_cut=len(text) > _LONGEST_IN_THREAD,
    )


def without_surrogates(text: str) -> str:
    """Without lone surrogates, which cannot be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_MOST_ACTIONS = 50


@dataclass(frozen=True, slots=True)
class ActionTaken:
    action: ActionRow
    can_undo: bool


@dataclass(frozen=True, slots=True)
class MessageVerdict:
    message_id: str
    tier: Tier
    assignment_rule: str | None
    """The priority rule that gave it its tier."""
    category: str | None
    is_metadata_only: bool
    """Only its headers were imported; the model did not see its text."""
    backfill_job_id: str | None
    accepted_at: datetime
    cost_microdollars: int
    """The cost of the model calls about it."""
    decision: DecisionMade | None
    actions: Sequence[ActionTaken]
    """Newest first."""


def judgement_of(tx: Tx, account: str, key: str) -> MessageVerdict | None:
    """None for mail that was only archived."""
    here = (messages.c.endpoint_identity == account, messages.c.external_event_id == key)
    row = tx.execute(select(messages).where(messages.c.provider == GMAIL, *here).limit(1)).one_or_none()
    if row is None:
        return None
    return MessageVerdict(
        message_id=row.id,
        tier=Tier(row.policy_tier),
        assignment_rule=row.assignment_rule,
        category=row.category,
        is_metadata_only=row.ingestion_tier == "metadata",
        backfill_job_id=row.backfill_job_id,
        accepted_at=row.accepted_at,
        cost_microdollars=Micros(spent_on(tx, row.id)),
        decision=decision_about(tx, row.id),
        actions=_actions(tx, row.id),
    )


def _actions(tx: Tx, message_id: str) -> list[ActionTaken]:
    return _taken(tx, ActionFilter(message_id=message_id, limit=_MOST_ACTIONS))


def _taken(tx: Tx, which: ActionFilter) -> list[ActionTaken]:
    found = browsing.list_actions(tx, which)
    emails = addresses(tx) if found else {}
    return [ActionTaken(row_of(each, emails), undo.why_not_now(tx, each.action) is None) for each in found]


@dataclass(frozen=True, slots=True)
class MessageState:
    """What can be done with a message, and what was done."""

    labels: tuple[str, ...]
    """As they are once what is under way is done."""
    obstacle: str | None
    """Why the mailbox's copy cannot be changed; null where it can."""
    actions: Sequence[ActionTaken]
    """Newest first, also on mail that was only archived."""


def state_of(tx: Tx, letter: MessageDetail, judgement: MessageVerdict | None, now: datetime) -> MessageState:
    changes = changes_under_way(tx, [letter], now).get((letter.account, letter.gmail_id or ""), ())
    return MessageState(
        labels=labels_after(letter.labels, changes),
        obstacle=_obstacle(tx, letter),
        actions=_actions_of_archived(tx, letter) if judgement is None else judgement.actions,
    )


def _actions_of_archived(tx: Tx, letter: MessageDetail) -> list[ActionTaken]:
    known = list_accounts(tx, with_removed=True)
    account = next((each for each in known if account_name(each.email) == letter.account), None)
    if account is None or letter.gmail_id is None:
        return []
    return _taken(tx, ActionFilter(account_id=account.id, gmail_id=letter.gmail_id, limit=_MOST_ACTIONS))


def _obstacle(tx: Tx, letter: MessageDetail) -> str | None:
    try:
        require_in_mailbox(tx, letter)
    except BadInput as error:
        return error.problem
    return None


@dataclass(frozen=True, slots=True)
class PictureState:
    """Remote pictures of a message, as its page shows them."""

    loaded: LoadedPictures | None
    """None: not asked for."""
    is_sender_allowed: bool
    can_allow_sender: bool
    """The sender is one, and authenticated."""

    @property
    def are_shown(self) -> bool:
        return self.loaded is not None or (self.is_sender_allowed and self.can_allow_sender)


def picture_state(tx: Tx, loader: PictureLoader, letter: MessageDetail) -> PictureState | None:
    """None for a message without remote pictures."""
    if letter.html is None or not letter.html.remote_images:
        return None
    known = len(letter.sender.shown) == 1 and not letter.sender.left_out
    allowed = known and is_allowed(tx, letter.sender.shown[0].address)
    can_allow = known and letter.authentication is Authentication.PASSED
    return PictureState(loader.loaded(letter.account, letter.key), allowed, can_allow)
