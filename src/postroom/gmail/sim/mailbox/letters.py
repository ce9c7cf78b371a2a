"""What a message is before it is written out: everything its headers and labels need, and none of its body."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from postroom.gmail.sim.mailbox.dice import Dice
from postroom.gmail.sim.mailbox.languages import ENGLISH, Language
from postroom.gmail.sim.mailbox.party import Party


class Category(StrEnum):
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


class Style(StrEnum):
    PLAIN = "plain"
    ALTERNATIVE = "alternative"
    HTML = "html"


@dataclass(frozen=True, slots=True)
class File:
    name: str
    content_type: str
    size: int
    inline: bool = False


@dataclass(frozen=True, slots=True)
class Letter:
    category: Category
    sender: Party
    to: tuple[Party, ...]
    subject: str
    cc: tuple[Party, ...] = ()
    reply_to: str = ""
    language: Language = ENGLISH
    facts: tuple[str, ...] = ()
    """Lines that only this message has: an amount, a date, a booking code."""
    personal: bool = False
    """Opens with a greeting and closes with a name."""
    paragraphs: int = 1
    style: Style = Style.PLAIN
    files: tuple[File, ...] = ()
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
        body = {Style.PLAIN: text, Style.ALTERNATIVE: 3 * text + 500, Style.HTML: 2 * text + 500}[self.style]
        return 1_100 + body + sum(300 + file.size * 137 // 100 for file in self.files)


_CODE = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_DOCUMENTS = ("Minutes", "Offer", "Plan", "Contract", "Übersicht", "Liste", "Résumé", "Checklist")


def document(dice: Dice) -> File:
    """Something people attach to letters."""
    stem = f"{dice.pick(_DOCUMENTS)} {dice.between(1, 99)}"
    size = dice.between(2_000, 40_000) if dice.chance(950) else dice.between(100_000, 400_000)
    match dice.below(4):
        case 0:
            return File(f"{stem}.zip", "application/zip", size)
        case 1:
            return File(f"IMG_{dice.between(1000, 9999)}.png", "image/png", size)
        case _:
            return File(f"{stem}.pdf", "application/pdf", size)


def invoice(dice: Dice, prefix: str) -> File:
    return File(f"{prefix}-{dice.between(10_000, 99_999)}.pdf", "application/pdf", dice.between(3_000, 30_000))


def amount(dice: Dice) -> str:
    return f"{dice.between(1, 480)}.{dice.below(100):02d}"


def code(dice: Dice, length: int = 6) -> str:
    """Letters and digits that cannot be mistaken for each other."""
    return "".join(dice.pick(_CODE) for _ in range(length))
