"""The labels Gmail and the owner would have put on a message."""

from __future__ import annotations

from postroom.gmail.sim.mailbox.dice import Dice
from postroom.gmail.sim.mailbox.letters import Category, Letter

USER_LABELS = {
    "Label_1": "Finance",
    "Label_2": "Travel",
    "Label_3": "Family",
    "Label_4": "Projects/House",
    "Label_5": "To read",
}
_TAB = {
    Category.NEWSLETTER: "CATEGORY_UPDATES",
    Category.PROMOTION: "CATEGORY_PROMOTIONS",
    Category.SOCIAL: "CATEGORY_SOCIAL",
    Category.LIST: "CATEGORY_FORUMS",
    Category.FINANCE: "CATEGORY_UPDATES",
    Category.TRAVEL: "CATEGORY_UPDATES",
    Category.NOTIFICATION: "CATEGORY_UPDATES",
}
_FILED = {
    Category.FINANCE: ("Label_1", 300),
    Category.TRAVEL: ("Label_2", 350),
    Category.RELATIONSHIP: ("Label_3", 120),
    Category.NEWSLETTER: ("Label_5", 60),
}
_UNREAD = {Category.NEWSLETTER: 450, Category.PROMOTION: 550, Category.SOCIAL: 300, Category.LIST: 250}
_IMPORTANT = frozenset({Category.RELATIONSHIP, Category.HEALTH, Category.FINANCE, Category.TRAVEL})


def labels_of(letter: Letter, dice: Dice, *, recent: bool) -> frozenset[str]:
    """`recent` mail is mostly still in the inbox; the rest was read and archived long ago."""
    if letter.category is Category.PERSONAL:
        return frozenset({"SENT", "INBOX"})
    labels = {"SENT"} if letter.sent else _received(letter, dice, recent)
    filed, per_mille = _FILED.get(letter.category, ("Label_4", 15))
    if not labels & {"SPAM", "TRASH"} and dice.chance(per_mille):
        labels.add(filed)
    if not labels & {"SPAM", "TRASH"} and dice.chance(20):
        labels.add("STARRED")
    return frozenset(labels)


def _received(letter: Letter, dice: Dice, recent: bool) -> set[str]:
    if letter.category is Category.SPAM and dice.chance(930):
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
