"""Mail from companies: banks, shops, travel, health, newsletters, promotions, notices. One function for each kind."""

from __future__ import annotations

from postroom.gmail.sim.mailbox.cast import (
    BANKS,
    HEALTH,
    NEWSLETTERS,
    NOTIFIERS,
    PROMOTIONS,
    SHOPS,
    SOCIAL,
    TRAVEL,
    Cast,
    Party,
)
from postroom.gmail.sim.mailbox.dice import Dice
from postroom.gmail.sim.mailbox.letters import Category, File, Letter, Style, amount, code, invoice

_PLACES = ("Lisbon", "Oslo", "Trieste", "Kyoto", "Montréal", "Kraków", "Porto", "Malmö")


def _day(dice: Dice) -> str:
    return f"{dice.between(1, 28)}.{dice.between(1, 12):02d}."


def bank(dice: Dice, cast: Cast) -> Letter:
    sender = dice.pick(BANKS)
    topic, facts = dice.pick(
        (
            ("Your monthly statement is ready", "Your statement for account **{n} is ready."),
            ("Payment of {a} EUR received", "We received {a} EUR on account **{n}."),
            ("Card payment of {a} EUR", "Your card ending in {n} was used for {a} EUR."),
            ("Receipt for your transfer", "You sent {a} EUR from account **{n}."),
            ("Tax certificate for last year", "The tax certificate for account **{n} is attached."),
        )
    )
    values = {"a": amount(dice), "n": dice.between(1000, 9999)}
    files = (invoice(dice, "statement"),) if dice.chance(300) else ()
    return Letter(
        Category.FINANCE,
        sender,
        (cast.addressed(dice),),
        topic.format(**values),
        facts=(facts.format(**values),),
        style=Style.ALTERNATIVE,
        files=files,
        auto_submitted="auto-generated" if dice.chance(400) else "",
    )


def receipt(dice: Dice, cast: Cast) -> Letter:
    sender = dice.pick(SHOPS)
    number, total = dice.between(100_000, 999_999), amount(dice)
    subject = dice.pick(
        (
            "Your receipt from {shop}",
            "Invoice {n}",
            "Order confirmation {n}",
            "Rechnung Nr. {n}",
            "Your bill of {a} EUR",
        )
    )
    return Letter(
        Category.FINANCE,
        sender,
        (cast.addressed(dice),),
        subject.format(shop=sender.name, n=number, a=total),
        facts=(f"Order {number}", f"Total: {total} EUR", "Thank you for your purchase."),
        style=dice.pick((Style.HTML, Style.ALTERNATIVE)),
        files=(invoice(dice, "invoice"),) if dice.chance(500) else (),
    )


def travel(dice: Dice, cast: Cast) -> Letter:
    sender, booking, place, day = dice.pick(TRAVEL), code(dice), dice.pick(_PLACES), _day(dice)
    subject = dice.pick(
        (
            "Booking confirmation {c}",
            "Your trip to {p}",
            "Check-in is open: {p}, {d}",
            "Your ticket {c}",
            "Change to your itinerary {c}",
            "Reservation in {p} confirmed",
        )
    )
    return Letter(
        Category.TRAVEL,
        sender,
        (cast.addressed(dice),),
        subject.format(c=booking, p=place, d=day),
        facts=(f"Booking code: {booking}", f"Destination: {place}", f"Departure: {day} at {dice.between(5, 22)}:40"),
        style=Style.ALTERNATIVE,
        files=(File(f"ticket-{booking}.pdf", "application/pdf", dice.between(5_000, 40_000)),)
        if dice.chance(500)
        else (),
    )


def health(dice: Dice, cast: Cast) -> Letter:
    day = _day(dice)
    subject = dice.pick(
        (
            "Your appointment on {d}",
            "Appointment confirmation",
            "Your test results are available",
            "Repeat prescription ready",
            "Reminder: check-up on {d}",
            "Vaccination record",
        )
    )
    return Letter(
        Category.HEALTH,
        dice.pick(HEALTH),
        (cast.addressed(dice),),
        subject.format(d=day),
        facts=(f"Appointment: {day} at {dice.between(8, 17)}:15", "Please bring your insurance card."),
        style=dice.pick((Style.PLAIN, Style.ALTERNATIVE)),
        files=(File("results.pdf", "application/pdf", dice.between(4_000, 20_000)),) if dice.chance(150) else (),
    )


def newsletter(dice: Dice, cast: Cast) -> Letter:
    sender = dice.pick(NEWSLETTERS)
    subject = dice.pick(
        (
            f"{sender.name}, issue {dice.between(1, 500)}",
            "What we learned this week",
            "Five long reads for the weekend",
            "On sharpening tools, and other small joys",
            "The month in review",
        )
    )
    return _bulk(dice, Category.NEWSLETTER, sender, cast.addressed(dice), subject, dice.between(4, 14))


def promotion(dice: Dice, cast: Cast) -> Letter:
    percent = dice.between(1, 14) * 5
    subject = dice.pick(
        (
            f"{percent} % off until Sunday",
            "Only today: free delivery",
            "New in: everything for the garden",
            f"A {percent} EUR voucher for you",
            "Last chance! Our summer sale ends",
            "Flights from 39 EUR",
            f"Nur für kurze Zeit: {percent} % Rabatt",
        )
    )
    return _bulk(dice, Category.PROMOTION, dice.pick(PROMOTIONS), cast.addressed(dice), subject, dice.between(2, 6))


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
