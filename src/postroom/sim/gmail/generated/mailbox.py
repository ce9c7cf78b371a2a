"""The generated mailbox: every message computed from the seed and its index when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from postroom.domain.errors import BadInput
from postroom.mail.composing import address_problem
from postroom.sim.gmail.generated.correspondents import Correspondent, Correspondents
from postroom.sim.gmail.generated.drafting import HUGE_CHARS, USER_LABELS, LetterDraft, MailDefect, defect_of, labels_of
from postroom.sim.gmail.generated.personal_mail import KINDS, letter_of, speaker, story_of
from postroom.sim.gmail.generated.schedule import ConversationPlan, PlannedConversation, PlannedPlace, instant
from postroom.sim.gmail.generated.seeded_random import SeededRandom, derive
from postroom.sim.gmail.generated.writing import GeneratedEnvelope, write
from postroom.sim.gmail.sources import MailSummary

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
