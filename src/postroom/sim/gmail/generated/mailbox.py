"""The generated mailbox: every message computed from the seed and its index when it is asked for; and when each arrives
and to which conversation it belongs, as functions of its index too.

Every block of 128 messages holds 106 conversations of fixed lengths in an order of its own, so a message's thread is
found without knowing any other block. Mail grows over ten years, with working days and nights.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from types import MappingProxyType

from postroom.domain.errors import BadInput
from postroom.mail.composing import address_problem
from postroom.sim.gmail.generated.correspondents import Correspondent, Correspondents
from postroom.sim.gmail.generated.drafting import HUGE_CHARS, USER_LABELS, LetterDraft, MailDefect, defect_of, labels_of
from postroom.sim.gmail.generated.personal_mail import KINDS, letter_of, speaker, story_of
from postroom.sim.gmail.generated.seeded_random import SeededRandom, derive
from postroom.sim.gmail.generated.writing import GeneratedEnvelope, write
from postroom.sim.gmail.sources import MailSummary

END = datetime(2026, 11, 1, tzinfo=UTC)
YEARS = 10
START = END - timedelta(days=365 * YEARS + 3)
_HOUR_MS = 3_600_000
_START_MS = int(START.timestamp()) * 1000
_WEEKDAY = (10, 11, 11, 10, 9, 4, 4)  # Monday first
_HOUR = (1, 1, 1, 1, 1, 2, 5, 9, 12, 12, 11, 10, 9, 10, 11, 10, 9, 8, 6, 5, 5, 4, 3, 2)
_JITTER_BITS = 20
_TIME_SALT = 0x7468796D


@cache
def _hours() -> array[int]:
    """The weight of all hours up to and including each; by the end three times as much arrives as at the start."""
    days = (END - START).days
    first_weekday = START.weekday()
    total = 0
    sums = array("q")
    for day in range(days):
        daily = (days + 2 * day) * _WEEKDAY[(first_weekday + day) % 7]
        for hour in _HOUR:
            total += daily * hour
            sums.append(total)
    return sums


def instant(seed: int, index: int, messages: int) -> int:
    """When the message at this index arrived, in epoch milliseconds; never falls as the index grows.

    The index plus a fraction of its own is a position in the ten years' worth of mail, so that no two messages need to
    know of each other. Whole numbers only: the same instant on every machine.
    """
    hours = _hours()
    scale = messages << _JITTER_BITS
    jitter = derive(seed, index, _TIME_SALT) >> (64 - _JITTER_BITS)
    whole, rest = divmod(((index << _JITTER_BITS) + jitter) * hours[-1], scale)
    hour = bisect_right(hours, whole)
    before = hours[hour - 1] if hour else 0
    within = ((whole - before) * scale + rest) * _HOUR_MS // ((hours[hour] - before) * scale)
    return _START_MS + hour * _HOUR_MS + within


BLOCK = 128
LENGTHS = (8, 5, 4, 3, 3, 2, 2, 2, 2) + (1,) * 97
_CLOSENESS = 6  # a reply follows its parent within so many messages
_CACHED_BLOCKS = 64
_PLAN_SALT = 0x706C616E


@dataclass(frozen=True, slots=True)
class PlannedConversation:
    """A thread: its number within the block, and where its messages are."""

    number: int
    block: int
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    conversation: PlannedConversation
    position: int


class ConversationPlan:
    def __init__(self, seed: int, messages: int) -> None:
        self._seed = seed
        self._messages = messages
        self._blocks: OrderedDict[int, list[PlannedPlace]] = OrderedDict()

    def place(self, index: int) -> PlannedPlace:
        block, slot = divmod(index, BLOCK)
        return self._block(block)[slot]

    def thread_count(self) -> int:
        whole, rest = divmod(self._messages, BLOCK)
        last = {place.conversation.number for place in self._block(whole)[:rest]} if rest else ()
        return whole * len(LENGTHS) + len(last)

    def _block(self, block: int) -> list[PlannedPlace]:
        places = self._blocks.get(block)
        if places is None:
            places = self._blocks[block] = _laid_out(self._seed, block)
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        return places


def _laid_out(seed: int, block: int) -> list[PlannedPlace]:
    order = _order(SeededRandom(seed, block, _PLAN_SALT))
    slots: list[list[int]] = [[] for _ in LENGTHS]
    for slot, number in enumerate(order):
        slots[number].append(block * BLOCK + slot)
    conversations = [PlannedConversation(number, block, tuple(indexes)) for number, indexes in enumerate(slots)]
    seen = [0] * len(LENGTHS)
    places: list[PlannedPlace] = []
    for number in order:
        places.append(PlannedPlace(conversations[number], seen[number]))
        seen[number] += 1
    return places


def _order(dice: SeededRandom) -> list[int]:
    """The conversation of each slot: starts are spread over the block, replies follow close behind."""
    moments: list[tuple[int, int, int]] = []
    for number, length in enumerate(LENGTHS):
        moment = dice.below(BLOCK << 16)
        for position in range(length):
            moments.append((moment, number, position))
            moment += 1 + dice.below(_CLOSENESS << 16)
    return [number for _, number, _ in sorted(moments)]


# Multiplying by an odd number modulo 2^60 never maps two indexes to one id, and can be undone. As at Gmail, ids have 16
# digits and the first is not 0: so the number that Takeout writes is the same id without it being padded.
_STRIDE = 0xD1342543DE82EF95
_ID_DIGITS = 16
_LEADING_ONE = 1 << 60
_ID_MASK = _LEADING_ONE - 1
_UNSTRIDE = pow(_STRIDE, -1, _LEADING_ONE)
_ID, _STORY, _LETTER, _LABELS, _UGLY, _BODY, _MESSAGE_ID = range(1, 8)


class GeneratedMailbox:
    """A `MailSource` of any size in the memory of a small one: the same seed gives the same bytes everywhere."""

    def __init__(self, messages: int, seed: int, email: str) -> None:
        if messages < 0:
            raise BadInput("messages", f"{messages} is negative")
        problem = address_problem(email) if email.isascii() else f"{email!r} is not ASCII"
        if problem:
            raise BadInput("email", problem)
        self._messages = messages
        self._seed = seed
        self._cast = Correspondents(seed, email)
        self._plan = ConversationPlan(seed, messages)
        self._offset = derive(seed, _ID)

    @property
    def email(self) -> str:
        return self._cast.owner.address

    @property
    def contacts(self) -> tuple[str, ...]:
        """The addresses of the people the owner knows, for evaluation."""
        return tuple(contact.address for contact in self._cast.contacts)

    def count(self) -> int:
        return self._messages

    def thread_count(self) -> int:
        return self._plan.thread_count()

    def user_labels(self) -> Mapping[str, str]:
        return MappingProxyType(USER_LABELS)

    def internal_date(self, index: int) -> int:
        return instant(self._seed, self._checked(index), self._messages)

    def index_of(self, message_id: str) -> int | None:
        if len(message_id) != _ID_DIGITS:
            return None
        try:
            value = int(message_id, 16)
        except ValueError:
            return None
        index = ((value - self._offset) * _UNSTRIDE) & _ID_MASK
        return index if index < self._messages and self._id(index) == message_id else None

    def thread(self, thread_id: str) -> Sequence[int]:
        first = self.index_of(thread_id)
        if first is None:
            return ()
        place = self._plan.place(first)
        if place.position:
            return ()
        return tuple(index for index in place.conversation.indexes if index < self._messages)

    def summary(self, index: int) -> MailSummary:
        place = self._plan.place(self._checked(index))
        ugly = self.ugliness(index)
        letter = self._letter(index, place, ugly)
        recent = index * 20 >= self._messages * 19
        return MailSummary(
            id=self._id(index),
            thread_id=self._id(place.conversation.indexes[0]),
            label_ids=labels_of(letter, SeededRandom(self._seed, index, _LABELS), recent=recent),
            internal_date=self.internal_date(index),
            sender=letter.sender.header,
            to=_listed(letter.to),
            cc=_listed(letter.cc),
            subject=letter.subject,
            message_id=self._message_id(index, letter.sender, ugly),
            list_id=letter.list_id,
            has_attachment=bool(letter.files) or letter.invitation,
            size=letter.estimated_size + (HUGE_CHARS if ugly is MailDefect.HUGE else 0),
            category=letter.category.value,
        )

    def raw(self, index: int) -> bytes:
        place = self._plan.place(self._checked(index))
        ugly = self.ugliness(index)
        letter = self._letter(index, place, ugly)
        envelope = GeneratedEnvelope(
            owner=self._cast.owner,
            internal_date=self.internal_date(index),
            message_id=self._message_id(index, letter.sender, ugly),
            references=self._references(place),
            ugly=ugly,
        )
        return write(letter, envelope, SeededRandom(self._seed, index, _BODY))

    def ugliness(self, index: int) -> MailDefect | None:
        """In which way the message is broken, if it is. Only mail without an answer is: threads stay whole."""
        place = self._plan.place(index)
        if len(place.conversation.indexes) > 1:
            return None
        ugly = defect_of(SeededRandom(self._seed, index, _UGLY))
        if ugly is None:
            return None
        letter = self._single(index)
        return None if letter.sent or letter.bounce else ugly

    def _letter(self, index: int, place: PlannedPlace, ugly: MailDefect | None) -> LetterDraft:
        if len(place.conversation.indexes) == 1:
            letter = self._single(index)
            if ugly is MailDefect.EIGHT_BIT_HEADER and letter.subject.isascii():
                return replace(letter, subject=f"Für Sie: {letter.subject}")
            return letter
        story = story_of(self._story_key(place.conversation), self._cast)
        return letter_of(story, place.position, self._cast, SeededRandom(self._seed, index, _LETTER))

    def _single(self, index: int) -> LetterDraft:
        dice = SeededRandom(self._seed, index, _LETTER)
        return dice.pick(KINDS)(dice, self._cast)

    def _story_key(self, conversation: PlannedConversation) -> int:
        return derive(self._seed, conversation.block, conversation.number, _STORY)

    def _references(self, place: PlannedPlace) -> tuple[str, ...]:
        """The ids of all messages before this one in its thread."""
        if not place.position:
            return ()
        story = story_of(self._story_key(place.conversation), self._cast)
        earlier = place.conversation.indexes[: place.position]
        return tuple(
            self._own_message_id(index, speaker(story, position, self._cast)) for position, index in enumerate(earlier)
        )

    def _message_id(self, index: int, sender: Correspondent, ugly: MailDefect | None) -> str:
        if ugly is MailDefect.NO_MESSAGE_ID:
            return ""
        if ugly is MailDefect.SAME_MESSAGE_ID:
            return f"<{index % 3}@localhost>"  # programs that number their messages start again at each restart
        return self._own_message_id(index, sender)

    def _own_message_id(self, index: int, sender: Correspondent) -> str:
        token = derive(self._seed, index, _MESSAGE_ID)
        if sender is self._cast.owner:
            return f"<CA+{token:016x}@mail.gmail.com>"
        return f"<{token:016x}@{sender.domain}>"

    def _id(self, index: int) -> str:
        return f"{_LEADING_ONE | (index * _STRIDE + self._offset) & _ID_MASK:x}"

    def _checked(self, index: int) -> int:
        if not 0 <= index < self._messages:
            raise BadInput("index", f"{index} is outside of this mailbox of {self._messages} messages")
        return index


def _listed(parties: tuple[Correspondent, ...]) -> str:
    return ", ".join(party.header for party in parties)
