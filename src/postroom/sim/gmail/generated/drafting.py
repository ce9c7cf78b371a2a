"""A message before it is written out: what its headers and labels need, its labels, and whether it is broken.

A small share of what arrives has one of the defects listed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from postroom.sim.gmail.generated.correspondents import Correspondent
from postroom.sim.gmail.generated.languages import ENGLISH, Language
from postroom.sim.gmail.generated.seeded_random import SeededRandom, weighted


class GeneratedCategory(StrEnum):
    """What a message truly is, for evaluation; nothing in the message says so."""

    FINANCE = "finance"
    HEALTH = "health"
    RELATIONSHIP = "relationship"
    TRAVEL = "travel"
    NEWSLETTER = "newsletter"
    PROMOTION = "promotion"
    SOCIAL = "social"
    NOTIFICATION = "notification"
    LIST = "list"
    SPAM = "spam"
    PERSONAL = "personal"


class LetterStyle(StrEnum):
    PLAIN = "plain"
    ALTERNATIVE = "alternative"
    HTML = "html"


@dataclass(frozen=True, slots=True)
class AttachedFile:
    name: str
    content_type: str
    size: int
    inline: bool = False


@dataclass(frozen=True, slots=True)
class LetterDraft:
    category: GeneratedCategory
    sender: Correspondent
    to: tuple[Correspondent, ...]
    subject: str
    cc: tuple[Correspondent, ...] = ()
    reply_to: str = ""
    language: Language = ENGLISH
    facts: tuple[str, ...] = ()
    """Lines that only this message has: an amount, a date, a booking code."""
    personal: bool = False
    """Opens with a greeting and closes with a name."""
    paragraphs: int = 1
    style: LetterStyle = LetterStyle.PLAIN
    files: tuple[AttachedFile, ...] = ()
    invitation: bool = False
    bounce: bool = False
    sent: bool = False
    list_id: str = ""
    unsubscribe: str = ""
    precedence: str = ""
    auto_submitted: str = ""
    forged: bool = False

    @property
    def estimated_size(self) -> int:
        text = 260 * self.paragraphs + sum(map(len, self.facts)) + 150
        body = {LetterStyle.PLAIN: text, LetterStyle.ALTERNATIVE: 3 * text + 500, LetterStyle.HTML: 2 * text + 500}[
            self.style
        ]
        return 1_100 + body + sum(300 + file.size * 137 // 100 for file in self.files)


_CODE = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_DOCUMENTS = ("Minutes", "Offer", "Plan", "Contract", "Übersicht", "Liste", "Résumé", "Checklist")


def document(dice: SeededRandom) -> AttachedFile:
    """Something people attach to letters."""
    stem = f"{dice.pick(_DOCUMENTS)} {dice.between(1, 99)}"
    size = dice.between(2_000, 40_000) if dice.chance(950) else dice.between(100_000, 400_000)
    match dice.below(4):
        case 0:
            return AttachedFile(f"{stem}.zip", "application/zip", size)
        case 1:
            return AttachedFile(f"IMG_{dice.between(1000, 9999)}.png", "image/png", size)
        case _:
            return AttachedFile(f"{stem}.pdf", "application/pdf", size)


def invoice(dice: SeededRandom, prefix: str) -> AttachedFile:
    return AttachedFile(f"{prefix}-{dice.between(10_000, 99_999)}.pdf", "application/pdf", dice.between(3_000, 30_000))


def amount(dice: SeededRandom) -> str:
    return f"{dice.between(1, 480)}.{dice.below(100):02d}"


def code(dice: SeededRandom, length: int = 6) -> str:
    """Letters and digits that cannot be mistaken for each other."""
    return "".join(dice.pick(_CODE) for _ in range(length))


USER_LABELS = {
    "Label_1": "Finance",
    "Label_2": "Travel",
    "Label_3": "Family",
    "Label_4": "Projects/House",
    "Label_5": "To read",
}
_TAB = {
    GeneratedCategory.NEWSLETTER: "CATEGORY_UPDATES",
    GeneratedCategory.PROMOTION: "CATEGORY_PROMOTIONS",
    GeneratedCategory.SOCIAL: "CATEGORY_SOCIAL",
    GeneratedCategory.LIST: "CATEGORY_FORUMS",
    GeneratedCategory.FINANCE: "CATEGORY_UPDATES",
    GeneratedCategory.TRAVEL: "CATEGORY_UPDATES",
    GeneratedCategory.NOTIFICATION: "CATEGORY_UPDATES",
}
_FILED = {
    GeneratedCategory.FINANCE: ("Label_1", 300),
    GeneratedCategory.TRAVEL: ("Label_2", 350),
    GeneratedCategory.RELATIONSHIP: ("Label_3", 120),
    GeneratedCategory.NEWSLETTER: ("Label_5", 60),
}
_UNREAD = {
    GeneratedCategory.NEWSLETTER: 450,
    GeneratedCategory.PROMOTION: 550,
    GeneratedCategory.SOCIAL: 300,
    GeneratedCategory.LIST: 250,
}
_IMPORTANT = frozenset(
    {GeneratedCategory.RELATIONSHIP, GeneratedCategory.HEALTH, GeneratedCategory.FINANCE, GeneratedCategory.TRAVEL}
)


def labels_of(letter: LetterDraft, dice: SeededRandom, *, recent: bool) -> frozenset[str]:
    """`recent` mail is mostly still in the inbox; the rest was read and archived long ago."""
    if letter.category is GeneratedCategory.PERSONAL:
        return frozenset({"SENT", "INBOX"})
    labels = {"SENT"} if letter.sent else _received(letter, dice, recent)
    filed, per_mille = _FILED.get(letter.category, ("Label_4", 15))
    if not labels & {"SPAM", "TRASH"} and dice.chance(per_mille):
        labels.add(filed)
    if not labels & {"SPAM", "TRASH"} and dice.chance(20):
        labels.add("STARRED")
    return frozenset(labels)


def _received(letter: LetterDraft, dice: SeededRandom, recent: bool) -> set[str]:
    if letter.category is GeneratedCategory.SPAM and dice.chance(930):
        return {"SPAM", "UNREAD"} if dice.chance(950) else {"SPAM"}
    labels = {_TAB.get(letter.category, "CATEGORY_PERSONAL")}
    if dice.chance(_UNREAD.get(letter.category, 60)):
        labels.add("UNREAD")
    if letter.category in _IMPORTANT and dice.chance(600):
        labels.add("IMPORTANT")
    if dice.chance(30):
        labels.add("TRASH")
    elif dice.chance(850 if recent else 300):
        labels.add("INBOX")
    return labels


class MailDefect(StrEnum):
    NO_MESSAGE_ID = "no Message-ID"
    SAME_MESSAGE_ID = "the Message-ID of another message"
    BROKEN_DATE = "a Date that is none"
    EIGHT_BIT_HEADER = "raw 8-bit characters in the Subject"
    WRONG_CHARSET = "text in another charset than it says"
    UNKNOWN_CHARSET = "a charset that does not exist"
    DEEP = "multiparts nested without end"
    HUGE = "a body of several hundred kilobytes"
    CUT_OFF = "a multipart that ends early"
    NUL = "NUL characters in the text"
    DAMAGED_BASE64 = "base64 with a piece missing"


HUGE_CHARS = 400_000
DEEP_LEVELS = 30
PER_MILLE = 25
_KINDS = weighted(
    (
        (MailDefect.NO_MESSAGE_ID, 4),
        (MailDefect.SAME_MESSAGE_ID, 3),
        (MailDefect.BROKEN_DATE, 4),
        (MailDefect.EIGHT_BIT_HEADER, 5),
        (MailDefect.WRONG_CHARSET, 4),
        (MailDefect.UNKNOWN_CHARSET, 2),
        (MailDefect.DEEP, 1),
        (MailDefect.HUGE, 1),
        (MailDefect.CUT_OFF, 3),
        (MailDefect.NUL, 2),
        (MailDefect.DAMAGED_BASE64, 3),
    )
)
BROKEN_DATES = ("Yesterday at noon", "Thu, 99 Foo 20116 25:61:00 +9900", "", "2019-13-45T99:00:00Z")


def defect_of(dice: SeededRandom) -> MailDefect | None:
    return dice.pick(_KINDS) if dice.chance(PER_MILLE) else None
