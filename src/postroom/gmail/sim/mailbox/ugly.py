"""Mail as it should not be: a small share of what arrives is broken in one of these ways."""

from __future__ import annotations

from enum import StrEnum

from postroom.gmail.sim.mailbox.dice import Dice, weighted


class Ugly(StrEnum):
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
        (Ugly.NO_MESSAGE_ID, 4),
        (Ugly.SAME_MESSAGE_ID, 3),
        (Ugly.BROKEN_DATE, 4),
        (Ugly.EIGHT_BIT_HEADER, 5),
        (Ugly.WRONG_CHARSET, 4),
        (Ugly.UNKNOWN_CHARSET, 2),
        (Ugly.DEEP, 1),
        (Ugly.HUGE, 1),
        (Ugly.CUT_OFF, 3),
        (Ugly.NUL, 2),
        (Ugly.DAMAGED_BASE64, 3),
    )
)
BROKEN_DATES = ("Yesterday at noon", "Thu, 99 Foo 20116 25:61:00 +9900", "", "2019-13-45T99:00:00Z")


def ugliness(dice: Dice) -> Ugly | None:
    return dice.pick(_KINDS) if dice.chance(PER_MILLE) else None
