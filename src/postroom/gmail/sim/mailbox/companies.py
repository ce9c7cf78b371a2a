"""Mail about money, travel and health, each with the words that its senders use in their language."""

from __future__ import annotations

from postroom.gmail.sim.mailbox.cast import Cast
from postroom.gmail.sim.mailbox.dice import Dice
from postroom.gmail.sim.mailbox.letters import Category, File, Letter, Style, amount, code, invoice
from postroom.gmail.sim.mailbox.organisations import FREELANCERS
from postroom.gmail.sim.mailbox.party import Party

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


def day_of(dice: Dice) -> str:
    return f"{dice.between(1, 28)}.{dice.between(1, 12):02d}."


def _subject(dice: Dice, sender: Party, subjects: dict[str, tuple[str, ...]], **values: object) -> str:
    kinds = _ODD if dice.chance(_ODD_PER_MILLE) else subjects[sender.language.code]
    return dice.pick(kinds).format_map({"p": _PLACES[0]} | values)


def bank(dice: Dice, cast: Cast) -> Letter:
    sender, total, number = dice.pick(cast.banks), amount(dice), dice.between(1000, 9999)
    return Letter(
        Category.FINANCE,
        sender,
        (cast.addressed(dice),),
        _subject(dice, sender, _BANK, a=total, n=number, m=dice.pick(_MONTHS)),
        facts=(f"Account **{number}", f"Amount: {total} EUR"),
        style=Style.ALTERNATIVE,
        files=(invoice(dice, "statement"),) if dice.chance(300) else (),
        auto_submitted="auto-generated" if dice.chance(400) else "",
    )


def receipt(dice: Dice, cast: Cast) -> Letter:
    """Some shops send their receipts through the programs that send their newsletters, and it shows in the headers."""
    sender, number, total = dice.pick(cast.shops), dice.between(100_000, 999_999), amount(dice)
    can_be_left = not sender.address.startswith(("no", "do")) and dice.chance(150)
    return Letter(
        Category.FINANCE,
        sender,
        (cast.addressed(dice),),
        _subject(dice, sender, _SHOP, shop=sender.name, n=number, a=total, m=dice.pick(_MONTHS), d=day_of(dice)),
        facts=(f"Order {number}", f"Total: {total} EUR", "Thank you for your purchase."),
        style=dice.pick((Style.HTML, Style.ALTERNATIVE)),
        files=(invoice(dice, "invoice"),) if dice.chance(500) else (),
        unsubscribe=f"<https://{sender.domain}/preferences>" if can_be_left else "",
    )


def bill_of_a_person(dice: Dice, cast: Cast) -> Letter:
    """From a freelancer, a practice or a hotel: about money, whoever sends it."""
    sender = dice.pick((*FREELANCERS, *FREELANCERS, dice.pick(cast.health), dice.pick(cast.travel)))
    number = f"20{dice.between(17, 26)}-{dice.between(10, 99)}"
    topic = dice.pick(("Invoice {n}", "Invoice no. {n} for your files", "Rechnung Nr. {n}", "Receipt {n}"))
    return Letter(
        Category.FINANCE,
        sender,
        (cast.owner,),
        topic.format(n=number),
        paragraphs=1,
        personal=True,
        files=(invoice(dice, "invoice"),),
    )


def travel(dice: Dice, cast: Cast) -> Letter:
    sender, booking, place, day = dice.pick(cast.travel), code(dice), dice.pick(_PLACES), day_of(dice)
    file = File(f"ticket-{booking}.pdf", "application/pdf", dice.between(5_000, 40_000))
    return Letter(
        Category.TRAVEL,
        sender,
        (cast.addressed(dice),),
        _subject(dice, sender, _TRIP, c=booking, p=place, d=day),
        facts=(f"Booking code: {booking}", f"Destination: {place}", f"Departure: {day} at {dice.between(5, 22)}:40"),
        style=Style.ALTERNATIVE,
        files=(file,) if dice.chance(500) else (),
        unsubscribe=f"<https://{sender.domain}/preferences>" if dice.chance(80) else "",
    )


def health(dice: Dice, cast: Cast) -> Letter:
    sender, day = dice.pick(cast.health), day_of(dice)
    return Letter(
        Category.HEALTH,
        sender,
        (cast.addressed(dice),),
        _subject(dice, sender, _CARE, d=day),
        facts=(f"Appointment: {day} at {dice.between(8, 17)}:15", "Please bring your insurance card."),
        style=dice.pick((Style.PLAIN, Style.ALTERNATIVE)),
        files=(File("results.pdf", "application/pdf", dice.between(4_000, 20_000)),) if dice.chance(150) else (),
        auto_submitted="auto-generated" if dice.chance(200) else "",
    )
