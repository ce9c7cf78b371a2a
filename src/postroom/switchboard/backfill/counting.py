"""Counts what a backfill would take in: in the archive, exactly, or at the source, by a sample; and how many tokens a
model counts in the text of a mail, estimated without its tokenizer.

A message is treated as the connector's backfill would treat it: categories, tier policy, what was taken in before, and
the owner's rules, because what they decide costs nothing.

A token is about four letters of English, half as many of Russian, and a single character of Chinese, so characters are
counted by their script. The ratios lie between those of the tokenizers in use; what calls have really taken corrects
them for the configured model.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from statistics import fmean
from typing import Protocol

from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import ArchivedMessage
from postroom.archive.preparing import body_text
from postroom.db import Tx
from postroom.domain.model_costs import MOST_TEXT_BYTES, cut_to_bytes
from postroom.domain.terms import Include
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.categories import Categories, facts_of, names_on
from postroom.mail.headers import Headers
from postroom.mailboxes.protocol import Detail, Mailbox, RemoteMessage, Span
from postroom.mailboxes.reader import sort_results
from postroom.reading.mail import read_mail
from postroom.switchboard.backfill.terms import NewBackfill

FULL, METADATA, SKIP = 1, 2, 3
Treat = Callable[[Headers, Collection[str]], int]
"""The tier policy: 1 full, 2 metadata only, 3 skip."""

_PAGE = 500
_MOST_PAGES = 40
SAMPLE = 150
_TEXTS_MEASURED = 500
_BODIES_FETCHED = 60
"""At the source, where each is paid for with quota."""
_LEFT_OUT = {
    "DRAFT": Include.DRAFTS,
    "SENT": Include.SENT,
    "SPAM": Include.SPAM,
    "TRASH": Include.TRASH,
}
_CHAT = "CHAT"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CountedIn(StrEnum):
    ARCHIVE = "archive"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Counts:
    source: CountedIn
    is_exact: bool
    listed: int
    """Messages that must be looked at."""
    full: int
    metadata: int
    known: int
    """Taken in before; they would be recognised, and cost nothing."""
    asked: int = 0
    """Of the full ones, those that no rule decides: for the model."""
    texts: tuple[TextSize, ...] = ()
    """Of a sample of these."""
    margin: int = 0
    """The 95 % margin of error, in messages."""

    @property
    def messages(self) -> int:
        """What would be taken in."""
        return self.full + self.metadata

    @property
    def left_out(self) -> int:
        return self.listed - self.messages - self.known


RuleTest = Callable[[Headers, Collection[str], datetime, int, bool], bool]
"""Whether a rule decides a message, by its headers, labels, date, size, and whether it has an attachment."""


def no_rules(headers: Headers, labels: Collection[str], received: datetime, size: int, has_attachment: bool) -> bool:
    return False


class RuleTests(Protocol):
    """The owner's rules as an estimate tries them."""

    def __call__(self, tx: Tx, account_id: str, now: datetime) -> RuleTest: ...


@dataclass
class BackfillTally:
    """Counts messages one by one, as the connector's backfill would treat them."""

    wanted: NewBackfill
    categories: Categories
    treat: Treat
    contacts: Container[str]
    """In the form that the connector compares."""
    taken_in: Container[str] = ()
    """The ids of messages that were taken in before."""
    is_decided: RuleTest = no_rules
    listed: int = 0
    outside: int = 0
    """Drafts, chats, and whatever else a job passes over without looking at it."""
    full: int = 0
    metadata: int = 0
    known: int = 0
    asked: int = 0

    def add(
        self,
        message_id: str,
        received: datetime,
        headers: Headers,
        labels: Collection[str],
        size: int = 0,
        has_attachment: bool = False,
    ) -> bool:
        """True if it would be taken in with its body, and the model asked."""
        left_out = (label for label, include in _LEFT_OUT.items() if include not in self.wanted.includes)
        if any(label in labels for label in (_CHAT, *left_out)):
            self.outside += 1
            return False
        self.listed += 1
        if self.wanted.target_categories and not self._is_wanted(received.date(), headers, labels):
            return False
        treatment = self.treat(headers, labels)
        if treatment in (FULL, METADATA) and message_id in self.taken_in:
            self.known += 1
            return False
        is_asked = treatment == FULL and not self.is_decided(headers, labels, received, size, has_attachment)
        self.full += treatment == FULL
        self.metadata += treatment == METADATA
        self.asked += is_asked
        return is_asked

    def _is_wanted(self, day: date, headers: Headers, labels: Collection[str]) -> bool:
        names = names_on(self.wanted.target_categories, self.wanted.category_from, day)
        senders = [
            canonical_address(each.address, fold_gmail=True) for each in parse_addresses(*headers.get_all("From"))
        ]
        is_known = bool(senders) and all(sender in self.contacts for sender in senders)
        facts = facts_of(headers, is_known=is_known, labels=labels)
        return bool(names) and bool(self.categories.matching(facts, names))


def count_archive(place: ArchiveBackend, tally: BackfillTally) -> Counts:
    """Exact: looks at every message of the days. Slow, so call it from a thread."""
    sample: list[ArchivedMessage] = []
    dice = random.Random(0)  # noqa: S311 (a sample, no secret)
    with place.reader() as archive:
        for message in _walked(archive, tally.wanted):
            facts = archive.headers_of(message), message.labels, message.size, message.has_attachment
            if tally.add(message.gmail_id or "", message.date, *facts):
                _keep_some(sample, message, tally.asked, dice)
        texts = tuple(TextSize.of(archive.body_of(message)) for message in sample)
    return Counts(CountedIn.ARCHIVE, True, tally.listed, tally.full, tally.metadata, tally.known, tally.asked, texts)


def _keep_some(sample: list[ArchivedMessage], message: ArchivedMessage, seen: int, dice: random.Random) -> None:
    """Each of those seen so far is as likely to be in the sample: mail of ten years ago is not like that of today."""
    if len(sample) < _TEXTS_MEASURED:
        sample.append(message)
    elif (place := dice.randrange(seen)) < _TEXTS_MEASURED:
        sample[place] = message


def _walked(archive: MailReader, wanted: NewBackfill) -> Iterator[ArchivedMessage]:
    cursor: str | None = None
    while True:
        found, cursor = archive.walk(wanted.endpoint_identity, wanted.date_from, wanted.date_to, cursor, _PAGE)
        yield from (message for message in found if message.deleted_at_source is None)
        if cursor is None:
            return


class CountableMailboxes(Protocol):
    def open(self, endpoint_identity: str) -> AbstractAsyncContextManager[Mailbox]:
        """The mailbox, connected."""


async def count_at_source(mailboxes: CountableMailboxes, tally: BackfillTally, sample_size: int = SAMPLE) -> Counts:
    """List ids with the categories' query, which is cheap; estimate from a sample how many of them are taken in, and
    from a smaller one how long their texts are."""
    wanted = tally.wanted
    async with mailboxes.open(wanted.endpoint_identity) as mailbox:
        ids, total, is_complete = await _listed(mailbox, wanted, tally.categories)
        sample = ids[:: max(1, len(ids) // sample_size)][:sample_size]
        # With all headers: asking for fewer is no cheaper, and the tier policy may look at any.
        asked = [
            message for message in sort_results(await mailbox.fetch(sample, Detail.HEADERS)).got if _add(tally, message)
        ]
        some = [message.id for message in asked[:: max(1, len(asked) // _BODIES_FETCHED)]][:_BODIES_FETCHED]
        fetched = sort_results(await mailbox.fetch(some, Detail.RAW)).got if some else []
    texts = await asyncio.to_thread(lambda: tuple(TextSize.of(_text_in(message)) for message in fetched))
    looked_at = max(tally.listed + tally.outside, 1)
    seen = tally.full, tally.metadata, tally.known, tally.asked
    full, metadata, known, of_model = (round(total * each / looked_at) for each in seen)
    is_exact = is_complete and tally.listed + tally.outside == total
    margin = 0 if is_exact else _margin(tally.full + tally.metadata, looked_at, total)
    return Counts(CountedIn.SOURCE, is_exact, total, full, metadata, known, of_model, texts, margin)


def _add(tally: BackfillTally, message: RemoteMessage) -> bool:
    headers = Headers(message.headers)
    has_attachment = "multipart/mixed" in (headers.get("Content-Type") or "").lower()
    return tally.add(
        message.id, message.received or _EPOCH, headers, message.label_ids, message.size or 0, has_attachment
    )


def _text_in(message: RemoteMessage) -> str:
    return body_text(read_mail(message.raw or b""))


def _margin(taken: int, looked_at: int, total: int) -> int:
    """Two standard errors of a share that was seen in a sample."""
    share = taken / looked_at
    return round(2 * total * math.sqrt(share * (1 - share) / looked_at))


async def _listed(mailbox: Mailbox, wanted: NewBackfill, categories: Categories) -> tuple[list[str], int, bool]:
    """The ids, how many there are in all, and whether that is known or the provider's guess."""
    days = Span(_epoch(wanted.date_from), _epoch(wanted.date_to + timedelta(days=1)))
    everywhere = Include.SPAM in wanted.includes or Include.TRASH in wanted.includes
    ids: list[str] = []
    pages = 0
    query = source_query(wanted, categories)
    async for page in mailbox.list(days, query=query, everywhere=everywhere, page_size=_PAGE):
        ids += page.ids
        pages += 1
        if not page.is_last and pages == _MOST_PAGES:
            return ids, max(page.estimate, len(ids)), False
    return ids, len(ids), True


def source_query(wanted: NewBackfill, categories: Categories) -> str:
    """What to ask the source for: the categories, without drafts and sent mail unless they are wanted."""
    left_out = [f"-in:{place}" for place in (Include.DRAFTS, Include.SENT) if place not in wanted.includes]
    names = wanted.target_categories
    named = [f"({categories.query(names, wanted.category_from)})"] if names else []
    return " ".join([*left_out, *named])


def _epoch(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


_ASCII_LETTER, _DIGIT, _MARK, _LINE_BREAK, _SPACE = 0.245, 0.42, 0.75, 0.5, 0.03
_OTHER = 2.0
"""Emoji, rare scripts and ornaments: several bytes, and seldom a token of their own."""
_SCRIPTS = (
    (0x0080, 0x00BF, 0.9),  # Latin punctuation and signs
    (0x00C0, 0x024F, 0.85),  # Latin letters with marks, which split the words that they stand in
    (0x0250, 0x036F, 1.0),
    (0x0370, 0x03FF, 0.55),  # Greek
    (0x0400, 0x052F, 0.40),  # Cyrillic
    (0x0530, 0x058F, 0.9),  # Armenian
    (0x0590, 0x05FF, 0.60),  # Hebrew
    (0x0600, 0x08FF, 0.50),  # Arabic
    (0x0900, 0x0DFF, 0.60),  # scripts of India
    (0x0E00, 0x0EFF, 0.65),  # Thai and Lao
    (0x1100, 0x11FF, 0.9),
    (0x1E00, 0x1EFF, 0.95),  # Vietnamese
    (0x2000, 0x206F, 0.9),  # dashes and quotation marks
    (0x3000, 0x303F, 0.9),
    (0x3040, 0x30FF, 0.85),  # Japanese syllables
    (0x3400, 0x9FFF, 1.0),  # Chinese characters
    (0xAC00, 0xD7AF, 0.85),  # Korean
    (0xFF00, 0xFFEF, 1.0),
)


def text_tokens(text: str) -> float:
    """About how many tokens this text has."""
    return sum(count * _weight(char) for char, count in Counter(text).items())


@lru_cache(maxsize=4_096)
def _weight(char: str) -> float:
    if char >= "\x80":
        return next((weight for first, last, weight in _SCRIPTS if first <= ord(char) <= last), _OTHER)
    if char.isalpha():
        return _ASCII_LETTER
    if char.isdigit():
        return _DIGIT
    return _LINE_BREAK if char == "\n" else _SPACE if char.isspace() else _MARK


@dataclass(frozen=True, slots=True)
class TextSize:
    """The text of a message, as much of it as a prompt has."""

    tokens: float
    bytes: int

    @classmethod
    def of(cls, text: str) -> TextSize:
        shown = cut_to_bytes(text[:MOST_TEXT_BYTES], MOST_TEXT_BYTES)
        return cls(text_tokens(shown), len(shown.encode()))


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """A call that was made: our estimate of the mail's text, and what the provider counted."""

    text_tokens: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class TokenModel:
    """What a call takes: so much besides the text, and so much for each token that we estimate in it."""

    beside_text: float
    factor: float
    output: float
    typical_text: float
    """Where no text can be measured."""

    def input_tokens(self, text: float) -> float:
        return self.beside_text + self.factor * text


UNMEASURED = TokenModel(beside_text=1_500, factor=1.0, output=80, typical_text=900)
"""About what a prompt has besides the mail: instructions, tools, headers, some guidance."""
ENOUGH_CALLS = 20
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 2.5


def fitted(calls: Sequence[MeasuredCall]) -> TokenModel:
    """The straight line through what calls have taken; too few of them say nothing."""
    if len(calls) < ENOUGH_CALLS:
        return UNMEASURED
    texts, taken = [call.text_tokens for call in calls], [float(call.input_tokens) for call in calls]
    text, total = fmean(texts), fmean(taken)
    spread = sum((each - text) ** 2 for each in texts)
    slope = sum((x - text) * (y - total) for x, y in zip(texts, taken, strict=True)) / spread if spread else 1.0
    most = min(_MOST_FACTOR, total / text) if text else _MOST_FACTOR
    factor = max(min(_LEAST_FACTOR, most), min(most, slope))
    output = fmean(call.output_tokens for call in calls)
    return TokenModel(total - factor * text, factor, output, text)
