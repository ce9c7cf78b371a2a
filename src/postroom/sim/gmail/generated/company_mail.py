"""Mail from organisations: money, travel and health, newsletters, promotions, social networks, and notices."""

from __future__ import annotations

from postroom.sim.gmail.generated import drafting
from postroom.sim.gmail.generated.correspondents import (
    FREELANCERS,
    LOCALS,
    NOTIFIERS,
    SOCIAL,
    Correspondent,
    Correspondents,
)
from postroom.sim.gmail.generated.seeded_random import SeededRandom

_PLACES = ("Lisbon", "Oslo", "Trieste", "Kyoto", "Montréal", "Kraków", "Porto", "Malmö")
_MONTHS = ("January", "March", "April", "June", "September", "November")
_BANK = {
    "en": (
        *("Your monthly statement is ready", "Payment of {a} EUR received", "Card payment of {a} EUR"),
        *("Receipt for your transfer", "Tax certificate for last year", "Your {m} statement is available"),
        *("You paid {a} EUR to Bookbarrow", "Your direct debit will change", "Low balance on account **{n}"),
        *("Your policy documents", "Annual summary of your account", "Your payslip for {m}", "Transfer completed"),
        *("A refund of €{a} is on its way", "Your premium for next year", "Interest earned in {m}"),
    ),
    "de": (
        *("Ihr Kontoauszug ist da", "Zahlungseingang über {a} EUR", "Jahressteuerbescheinigung"),
        *("Lastschrift über {a} EUR", "Ihre Beitragsrechnung"),
    ),
    "fr": ("Votre relevé de compte est disponible", "Virement de {a} EUR reçu", "Votre avis d'échéance"),
    "es": ("Ya tienes tu extracto de {m}", "Has recibido una transferencia de {a} EUR", "Recibo domiciliado"),
}
_SHOP = {
    "en": (
        *("Your receipt from {shop}", "Invoice {n}", "Order confirmation {n}", "Your bill of {a} EUR"),
        *("Thank you for your order", "Your {m} bill is ready", "Order #{n} confirmed", "Payment received: €{a}"),
        *(
            "Your subscription was renewed",
            "Receipt #{n}",
            "We have refunded your purchase",
            "Your invoice is available",
        ),
        *("Payment failed for invoice {n}", "Your purchase at {shop}", "Your invoice is available"),
    ),
    "de": ("Rechnung Nr. {n}", "Ihre Rechnung {n} vom {d}", "Bestellbestätigung {n}", "Ihre Bestellung bei {shop}"),
    "fr": ("Votre facture n° {n}", "Confirmation de commande {n}", "Votre reçu", "Prélèvement de {a} EUR"),
    "es": ("Tu factura de {m}", "Confirmación de pedido {n}", "Tu pedido {n}", "Pago recibido"),
}
_TRIP = {
    "en": (
        *("Booking confirmation {c}", "Your trip to {p}", "Check-in is open: {p}, {d}", "Your ticket {c}"),
        *("Change to your itinerary {c}", "Reservation in {p} confirmed", "Boarding pass for {p}"),
        *("Your stay in {p} starts tomorrow", "E-ticket {c}", "Your journey on {d}", "Schedule change: {c}"),
        *("Pick-up details for {d}", "Your booking {c} was cancelled"),
    ),
    "de": ("Buchungsbestätigung {c}", "Ihre Reise nach {p}", "Ihr Online-Ticket {c}", "Ihr Aufenthalt in {p}"),
    "fr": ("Confirmation de votre réservation {c}", "Votre billet pour {p}", "Votre séjour à {p}"),
    "es": ("Confirmación de tu reserva {c}", "Tu viaje a {p}", "Tarjeta de embarque {c}"),
}
_CARE = {
    "en": (
        *("Your appointment on {d}", "Appointment confirmation", "Your test results are available"),
        *("Repeat prescription ready", "Reminder: check-up on {d}", "Vaccination record", "Flu jabs this autumn"),
        *("Please fill in this form before your visit", "Your referral"),
        *("Blood test on {d}", "Your new prescription", "Your treatment plan"),
    ),
    "de": ("Ihr Termin am {d}", "Terminerinnerung", "Ihr Rezept liegt bereit", "Ihr Befund ist da", "Impfung am {d}"),
    "fr": ("Votre rendez-vous du {d}", "Vos résultats d'analyses", "Rappel de vaccin", "Votre ordonnance"),
    "es": ("Su cita del {d}", "Sus resultados están disponibles", "Recordatorio de vacunación", "Su receta"),
}

# Now and then a subject says nothing at all.
_ODD = (
    "How was {p}?",
    "Directions and parking",
    "A new message for you",
    "Please reply",
    "Neue Mitteilung",
    "Running late",
)
_ODD_PER_MILLE = 20


def day_of(dice: SeededRandom) -> str:
    return f"{dice.between(1, 28)}.{dice.between(1, 12):02d}."


def _subject(dice: SeededRandom, sender: Correspondent, subjects: dict[str, tuple[str, ...]], **values: object) -> str:
    kinds = _ODD if dice.chance(_ODD_PER_MILLE) else subjects[sender.language.code]
    return dice.pick(kinds).format_map({"p": _PLACES[0]} | values)


def bank(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
    sender, total, number = dice.pick(cast.banks), drafting.amount(dice), dice.between(1000, 9999)
    return drafting.LetterDraft(
        drafting.GeneratedCategory.FINANCE,
        sender,
        (cast.addressed(dice),),
        _subject(dice, sender, _BANK, a=total, n=number, m=dice.pick(_MONTHS)),
        facts=(f"Account **{number}", f"Amount: {total} EUR"),
        style=drafting.LetterStyle.ALTERNATIVE,
        files=(drafting.invoice(dice, "statement"),) if dice.chance(300) else (),
        auto_submitted="auto-generated" if dice.chance(400) else "",
    )


def receipt(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
    """Some shops send their receipts through the programs that send their newsletters, and it shows in the headers."""
    sender, number, total = dice.pick(cast.shops), dice.between(100_000, 999_999), drafting.amount(dice)
    can_be_left = not sender.address.startswith(("no", "do")) and dice.chance(150)
    return drafting.LetterDraft(
        drafting.GeneratedCategory.FINANCE,
        sender,
        (cast.addressed(dice),),
        _subject(dice, sender, _SHOP, shop=sender.name, n=number, a=total, m=dice.pick(_MONTHS), d=day_of(dice)),
        facts=(f"Order {number}", f"Total: {total} EUR", "Thank you for your purchase."),
        style=dice.pick((drafting.LetterStyle.HTML, drafting.LetterStyle.ALTERNATIVE)),
        files=(drafting.invoice(dice, "invoice"),) if dice.chance(500) else (),
        unsubscribe=f"<https://{sender.domain}/preferences>" if can_be_left else "",
    )


def bill_of_a_person(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
    """From a freelancer, a practice or a hotel: about money, although a person or a practice sends it."""
    sender = dice.pick((*FREELANCERS, *FREELANCERS, dice.pick(cast.health), dice.pick(cast.travel)))
    number = f"20{dice.between(17, 26)}-{dice.between(10, 99)}"
    topic = dice.pick(("Invoice {n}", "Invoice no. {n} for your files", "Rechnung Nr. {n}", "Receipt {n}"))
    return drafting.LetterDraft(
        drafting.GeneratedCategory.FINANCE,
        sender,
        (cast.owner,),
        topic.format(n=number),
        paragraphs=1,
        personal=True,
        files=(drafting.invoice(dice, "invoice"),),
    )


def travel(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
    sender, booking, place, day = dice.pick(cast.travel), drafting.code(dice), dice.pick(_PLACES), day_of(dice)
    file = drafting.AttachedFile(f"ticket-{booking}.pdf", "application/pdf", dice.between(5_000, 40_000))
    return drafting.LetterDraft(
        drafting.GeneratedCategory.TRAVEL,
        sender,
        (cast.addressed(dice),),
        _subject(dice, sender, _TRIP, c=booking, p=place, d=day),
        facts=(f"Booking code: {booking}", f"Destination: {place}", f"Departure: {day} at {dice.between(5, 22)}:40"),
        style=drafting.LetterStyle.ALTERNATIVE,
        files=(file,) if dice.chance(500) else (),
        unsubscribe=f"<https://{sender.domain}/preferences>" if dice.chance(80) else "",
    )


def health(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
    sender, day = dice.pick(cast.health), day_of(dice)
    return drafting.LetterDraft(
        drafting.GeneratedCategory.HEALTH,
        sender,
        (cast.addressed(dice),),
        _subject(dice, sender, _CARE, d=day),
        facts=(f"Appointment: {day} at {dice.between(8, 17)}:15", "Please bring your insurance card."),
        style=dice.pick((drafting.LetterStyle.PLAIN, drafting.LetterStyle.ALTERNATIVE)),
        files=(drafting.AttachedFile("results.pdf", "application/pdf", dice.between(4_000, 20_000)),)
        if dice.chance(150)
        else (),
        auto_submitted="auto-generated" if dice.chance(200) else "",
    )


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


def newsletter(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
    sender = dice.pick(cast.newsletters)
    subject = dice.pick((f"{sender.name}, issue {dice.between(1, 500)}", dice.pick(_READING), dice.pick(_READING)))
    return _bulk(
        dice, drafting.GeneratedCategory.NEWSLETTER, sender, cast.addressed(dice), subject, dice.between(4, 14)
    )


def promotion(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
    sender = dice.pick(cast.promotions)
    subject = dice.pick(_OFFERS[sender.language.code]).format(p=dice.between(1, 14) * 5)
    return _bulk(dice, drafting.GeneratedCategory.PROMOTION, sender, cast.addressed(dice), subject, dice.between(2, 6))


def _bulk(
    dice: SeededRandom,
    category: drafting.GeneratedCategory,
    sender: Correspondent,
    owner: Correspondent,
    subject: str,
    paragraphs: int,
) -> drafting.LetterDraft:
    return drafting.LetterDraft(
        category,
        sender,
        (owner,),
        subject,
        paragraphs=paragraphs,
        style=drafting.LetterStyle.HTML if dice.chance(450) else drafting.LetterStyle.ALTERNATIVE,
        list_id=f"{sender.name} <{sender.address.replace('@', '.')}>" if dice.chance(500) else "",
        unsubscribe=f"<https://{sender.domain}/unsubscribe/{drafting.code(dice, 12)}>",
        precedence="bulk" if dice.chance(700) else "",
        reply_to=f"reply@{sender.domain}" if dice.chance(200) else "",
    )


def social(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
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
    return drafting.LetterDraft(
        drafting.GeneratedCategory.SOCIAL,
        sender,
        (cast.addressed(dice),),
        subject,
        style=drafting.LetterStyle.HTML,
        unsubscribe=f"<https://{sender.domain}/off>" if dice.chance(850) else "",
        auto_submitted="auto-generated",
    )


def notification(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
    sender = dice.pick(NOTIFIERS)
    number = dice.between(100, 9999)
    subject = dice.pick(
        (
            f"[forge/{drafting.code(dice, 4).lower()}] Build {number} failed",
            "New sign-in to your account",
            f"Your parcel {number} is on its way",
            "Password changed",
            "Disk usage above 80 %",
            "Two books are due on Friday",
        )
    )
    return drafting.LetterDraft(
        drafting.GeneratedCategory.NOTIFICATION,
        sender,
        (cast.addressed(dice),),
        subject,
        facts=(f"Reference: {number}",),
        style=dice.pick((drafting.LetterStyle.PLAIN, drafting.LetterStyle.ALTERNATIVE)),
        auto_submitted="auto-generated" if dice.chance(800) else "",
        unsubscribe=f"<mailto:off@{sender.domain}>" if dice.chance(250) else "",
    )


def local_business(dice: SeededRandom, cast: Correspondents) -> drafting.LetterDraft:
    """Appointments, bookings and tickets that have nothing to do with health or travel."""
    sender, subjects = dice.pick(LOCALS)
    return drafting.LetterDraft(
        drafting.GeneratedCategory.NOTIFICATION,
        sender,
        (cast.addressed(dice),),
        dice.pick(subjects).format(d=day_of(dice)),
        facts=(f"Reference: {dice.between(100, 9999)}",),
        style=drafting.LetterStyle.ALTERNATIVE,
    )
