"""Other messages that stand alone: spam, strangers, invitations, notes; and how often each kind of message comes."""

from __future__ import annotations

from collections.abc import Callable

from postroom.gmail.sim.mailbox.bulletins import local_business, newsletter, notification, promotion, social
from postroom.gmail.sim.mailbox.cast import Cast
from postroom.gmail.sim.mailbox.companies import bank, bill_of_a_person, health, receipt, travel
from postroom.gmail.sim.mailbox.dice import Dice, weighted
from postroom.gmail.sim.mailbox.letters import Category, Letter, Style, code, document
from postroom.gmail.sim.mailbox.organisations import LISTS
from postroom.gmail.sim.mailbox.party import Party

_ANNOUNCEMENTS = ("Minutes of the meeting", "Release 0.9", "Date for the summer party", "Call for help")


def bounce(dice: Dice, cast: Cast) -> Letter:
    return Letter(
        Category.NOTIFICATION,
        Party("Mail Delivery Subsystem", f"mailer-daemon@{cast.owner.domain}"),
        (cast.owner,),
        "Delivery Status Notification (Failure)",
        facts=(f"Your message to nobody{dice.below(100)}@gone.example could not be delivered.",),
        bounce=True,
        auto_submitted="auto-replied",
    )


def spam(dice: Dice, cast: Cast) -> Letter:
    subject = dice.pick(
        (
            "Your account is suspended!!!",
            "You have won 850,000 EUR",
            "Re: unpaid invoice",
            "Cheap watches, best quality",
            "Urgent business proposal",
            "Вы выиграли приз",
            "100% gratis für Sie",
        )
    )
    forged = dice.chance(350)
    # A forger borrows a name that the owner trusts: a bank, a clinic, or a friend.
    sender = (
        dice.pick((dice.pick(cast.banks), dice.pick(cast.health), cast.contact(dice))) if forged else _spammer(dice)
    )
    return Letter(
        Category.SPAM,
        sender,
        (cast.owner,),
        subject,
        facts=(f"Click here: http://{code(dice, 8).lower()}.example/win",),
        style=dice.pick((Style.HTML, Style.PLAIN)),
        files=(document(dice),) if dice.chance(100) else (),
        forged=forged,
        reply_to=f"{code(dice, 8).lower()}@drop.example" if dice.chance(500) else "",
    )


def _spammer(dice: Dice) -> Party:
    name = dice.pick(("Prize Office", "Mrs. Grace Wills", "Support Team", "W A T C H E S", ""))
    return Party(name, f"{code(dice, 7).lower()}@{code(dice, 9).lower()}.example")


def from_a_stranger(dice: Dice, cast: Cast) -> Letter:
    sender = cast.stranger(dice)
    language = sender.language
    return Letter(
        Category.RELATIONSHIP,
        sender,
        (cast.owner,),
        dice.pick(language.subjects),
        language=language,
        personal=True,
        paragraphs=dice.between(1, 3),
        style=dice.pick((Style.PLAIN, Style.ALTERNATIVE)),
        files=(document(dice),) if dice.chance(120) else (),
    )


def to_a_contact(dice: Dice, cast: Cast) -> Letter:
    """A message of the owner's that nobody answered."""
    friend = cast.contact(dice)
    return Letter(
        Category.RELATIONSHIP,
        cast.owner,
        (friend,),
        dice.pick(friend.language.subjects),
        language=friend.language,
        personal=True,
        paragraphs=dice.between(1, 3),
        files=(document(dice),) if dice.chance(200) else (),
        sent=True,
    )


def note_to_self(dice: Dice, cast: Cast) -> Letter:
    subject = dice.pick(("note", "Remember", "Shopping list", "Wifi password for the cabin", "Idea"))
    return Letter(Category.PERSONAL, cast.owner, (cast.owner,), subject, sent=True, paragraphs=1)


def invitation(dice: Dice, cast: Cast) -> Letter:
    friend = cast.contact(dice)
    topic = dice.pick(friend.language.subjects)
    return Letter(
        Category.RELATIONSHIP,
        friend,
        (cast.owner,),
        f"Invitation: {topic}",
        cc=tuple(dice.sample(cast.contacts, dice.below(3))),
        language=friend.language,
        invitation=True,
        style=Style.ALTERNATIVE,
    )


def list_announcement(dice: Dice, cast: Cast) -> Letter:
    name, list_id = dice.pick(LISTS)
    address = list_id.replace(".", "@", 1)
    return Letter(
        Category.LIST,
        cast.stranger(dice),
        (Party(name, address),),
        f"[{name}] {dice.pick(_ANNOUNCEMENTS)}",
        paragraphs=dice.between(1, 4),
        list_id=f"{name} <{list_id}>",
        unsubscribe=f"<mailto:{address.replace('@', '-leave@')}>",
        precedence="list",
    )


Kind = Callable[[Dice, Cast], Letter]

KINDS: tuple[Kind, ...] = weighted(
    (
        (newsletter, 34),
        (promotion, 30),
        (notification, 20),
        (local_business, 2),
        (social, 18),
        (receipt, 17),
        (bill_of_a_person, 1),
        (bank, 14),
        (spam, 15),
        (travel, 10),
        (health, 8),
        (list_announcement, 8),
        (from_a_stranger, 6),
        (to_a_contact, 6),
        (invitation, 5),
        (note_to_self, 3),
        (bounce, 2),
    )
)
