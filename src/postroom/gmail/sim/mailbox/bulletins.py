"""Mail that is sent to many, or by machines: newsletters, promotions, social networks, notices."""

from __future__ import annotations

from postroom.gmail.sim.mailbox.cast import Cast
from postroom.gmail.sim.mailbox.companies import day_of
from postroom.gmail.sim.mailbox.dice import Dice
from postroom.gmail.sim.mailbox.letters import Category, Letter, Style, code
from postroom.gmail.sim.mailbox.organisations import LOCALS, NOTIFIERS, SOCIAL
from postroom.gmail.sim.mailbox.party import Party

_READING = (
    *("What we learned this week", "Five long reads for the weekend", "On sharpening tools, and other small joys"),
    *("The month in review", "How to read a bank statement", "Tax season: what to know", "Ten train journeys to take"),
    *("Is it time for a check-up?", "Sleep, and how to get more of it", "Notes from the editor"),
)
_OFFERS = {
    "en": (
        *("{p} % off until Sunday", "Only today: free delivery", "New in: everything for the garden"),
        *("A {p} EUR voucher for you", "Last chance! Our summer sale ends", "Flights from 39 EUR"),
        *("Your next trip starts here", "Check in to savings: {p} % off hotels", "Earn double points in May"),
        *("A card that pays you back", "Whiter teeth for less", "Your order deserves a treat", "We miss you"),
    ),
    "de": ("Nur für kurze Zeit: {p} % Rabatt", "Jetzt buchen und {p} EUR sparen", "Neue Lampen, neues Licht"),
    "fr": ("Soldes : jusqu'à -{p} %", "Nos offres de la semaine", "Une surprise pour vous"),
}


def newsletter(dice: Dice, cast: Cast) -> Letter:
    sender = dice.pick(cast.newsletters)
    subject = dice.pick((f"{sender.name}, issue {dice.between(1, 500)}", dice.pick(_READING), dice.pick(_READING)))
    return _bulk(dice, Category.NEWSLETTER, sender, cast.addressed(dice), subject, dice.between(4, 14))


def promotion(dice: Dice, cast: Cast) -> Letter:
    sender = dice.pick(cast.promotions)
    subject = dice.pick(_OFFERS[sender.language.code]).format(p=dice.between(1, 14) * 5)
    return _bulk(dice, Category.PROMOTION, sender, cast.addressed(dice), subject, dice.between(2, 6))


def _bulk(dice: Dice, category: Category, sender: Party, owner: Party, subject: str, paragraphs: int) -> Letter:
    return Letter(
        category,
        sender,
        (owner,),
        subject,
        paragraphs=paragraphs,
        style=Style.HTML if dice.chance(450) else Style.ALTERNATIVE,
        list_id=f"{sender.name} <{sender.address.replace('@', '.')}>" if dice.chance(500) else "",
        unsubscribe=f"<https://{sender.domain}/unsubscribe/{code(dice, 12)}>",
        precedence="bulk" if dice.chance(700) else "",
        reply_to=f"reply@{sender.domain}" if dice.chance(200) else "",
    )


def social(dice: Dice, cast: Cast) -> Letter:
    friend = cast.contact(dice)
    subject = dice.pick(
        (
            f"{friend.name} mentioned you",
            f"{friend.name} sent you a friend request",
            "You have 3 new notifications",
            "People you may know",
            f"{friend.name} commented on your post",
        )
    )
    sender = dice.pick(SOCIAL)
    return Letter(
        Category.SOCIAL,
        sender,
        (cast.addressed(dice),),
        subject,
        style=Style.HTML,
        unsubscribe=f"<https://{sender.domain}/off>" if dice.chance(850) else "",
        auto_submitted="auto-generated",
    )


def notification(dice: Dice, cast: Cast) -> Letter:
    sender = dice.pick(NOTIFIERS)
    number = dice.between(100, 9999)
    subject = dice.pick(
        (
            f"[forge/{code(dice, 4).lower()}] Build {number} failed",
            "New sign-in to your account",
            f"Your parcel {number} is on its way",
            "Password changed",
            "Disk usage above 80 %",
            "Two books are due on Friday",
        )
    )
    return Letter(
        Category.NOTIFICATION,
        sender,
        (cast.addressed(dice),),
        subject,
        facts=(f"Reference: {number}",),
        style=dice.pick((Style.PLAIN, Style.ALTERNATIVE)),
        auto_submitted="auto-generated" if dice.chance(800) else "",
        unsubscribe=f"<mailto:off@{sender.domain}>" if dice.chance(250) else "",
    )


def local_business(dice: Dice, cast: Cast) -> Letter:
    """Appointments, bookings and tickets that have nothing to do with health or travel."""
    sender, subjects = dice.pick(LOCALS)
    return Letter(
        Category.NOTIFICATION,
        sender,
        (cast.addressed(dice),),
        dice.pick(subjects).format(d=day_of(dice)),
        facts=(f"Reference: {dice.between(100, 9999)}",),
        style=Style.ALTERNATIVE,
    )
