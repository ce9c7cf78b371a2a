"""The tier policy that an installation starts with. It errs towards keeping: what is demoted
says itself that it is bulk.

That an address says no-reply demotes nothing, because banks, doctors and airlines write from such addresses too.
"""

from __future__ import annotations

from typing import Any

from postroom.mail.tier_policy import TierPolicy, parse_rules

_MONEY = (
    r"\b(receipts?|invoices?|statements?|payslips?|refund(ed)?|tax (certificate|return|document)|direct debit"
    r"|standing order|order confirm\w+|confirm\w+ (of )?your order|your (bill|order|purchase|subscription|premium)"
    r"|(card|bank) (payment|transfer|transaction)|payments? (of|received|due|failed|sent|to)"
    r"|transfer (of|received|sent)"
    r"|transaction alert|overdraft|mahnung|zahlung\w*|kontoauszug|steuerbescheinigung|quittung|bestellbest\w+"
    r"|re[cç]us?|facturen?|factures?|facturas?|ricevut\w+|fattura|recibos?|paragon|faktura\w*)\b|rechnung"
)
_HEALTH = (
    r"\b(appointments?|check-?up|(test|lab|blood) results?|prescriptions?|vaccinat\w+|referral|diagnos\w+|surgery date"
    r"|arzttermin\w*|termin(e|s|best\w+|erinnerung)?|befund\w*|rezepte?|rendez-vous|ordonnance|citas? m[eé]dicas?)\b"
)
_TRAVEL = (
    r"\b(booking (confirm\w+|reference|number|code)|your (booking|trip|flight|ticket|reservation|itinerary|stay)"
    r"|itinerary|e-?tickets?|boarding pass|check-?in (is )?(now )?open"
    r"|reservation .{0,60}\b(confirmed|changed|cancel\w+)"
    r"|flight .{0,60}\b(confirm\w+|cancel\w+|delay\w+|changed?)|reisebest\w+|buchungsbest\w+|bordkarte)\b"
)
_SECURITY = (
    r"\b((security|verification|login|sign-?in|one-?time|confirmation) (code|alert|link)|new (sign-?in|login|device)"
    r"|password (changed|reset)|reset your password|two-?factor|unusual (activity|sign-?in)|sicherheitscode"
    r"|einmalpasswort|passwort ge[aä]ndert)\b"
)
_TRUSTED_TRADES = (
    r"@([a-z0-9-]+\.)*([a-z0-9]+-)*(bank|banking|sparkasse|volksbank|credit-?union|clinics?|klinik|hospital|krankenhaus"
    r"|praxis|surgery|dental|dentist|zahnarzt|doctors?|medical|pharmacy|apotheke|insurance|versicherung|airlines?"
    r"|airways"
    r"|finanzamt|gov)(-[a-z0-9]+)*\."
)
_MASS_MAILER = (
    r"^(news(letters?)?|digest|offers?|deals?|marketing|promo(tion)?s?|sale|angebote|campaigns?)([._+-][^@]*)?@"
    r"|@([a-z0-9-]+\.)*(news|newsletters?|marketing|promo|offers|campaigns?)\."
)
_MACHINE = (
    r"^(notifications?|notify|alerts?|monitoring|tracking|builds?|ci|status|updates?|jira|noreply-git)([._+-][^@]*)?@"
)

SPAM_LIKE = "It looks like spam that Gmail has not labelled: its headers are kept, its body is not read."

RULES: tuple[dict[str, Any], ...] = (
    {"tier": 3, "condition": {"labels": ["SPAM"]}, "note": "Gmail calls it spam, whatever it says it is."},
    {
        "tier": 3,
        "condition": {"labels": ["CATEGORY_PROMOTIONS"], "headers": {"List-Unsubscribe": "."}},
        "note": "Gmail and the sender both say that it is advertising.",
    },
    {
        "tier": 2,
        "condition": {"kinds": ["spam_like"], "without_kinds": ["discussion"]},
        "note": SPAM_LIKE,
    },
    {
        "tier": 2,
        "condition": {"sender_pattern": _MASS_MAILER, "headers": {"List-Unsubscribe": "."}},
        "note": "A bank's marketing is marketing, so this stands before what is kept for the sender's sake.",
    },
    {"tier": 1, "condition": {"subject": _MONEY}, "note": "Receipts, statements, payments."},
    {"tier": 1, "condition": {"subject": _HEALTH}, "note": "Appointments and results."},
    {"tier": 1, "condition": {"subject": _TRAVEL}, "note": "Bookings, tickets, changes."},
    {"tier": 1, "condition": {"subject": _SECURITY}, "note": "Codes and warnings."},
    {
        "tier": 1,
        "condition": {"sender_pattern": _TRUSTED_TRADES, "bulk": False},
        "note": "Banks, doctors, insurers, airlines, offices: by what their domain calls itself.",
    },
    {
        "tier": 2,
        "condition": {"labels": ["CATEGORY_SOCIAL"], "without_headers": ["In-Reply-To"]},
        "note": "What social networks send about themselves.",
    },
    {
        "tier": 2,
        "condition": {
            "bulk": True,
            "headers": {"List-Unsubscribe": "."},
            "without_headers": ["List-Post", "In-Reply-To"],
            "without_kinds": ["discussion"],
        },
        "note": "Sent to many, with a way out; discussion lists, where people write, are not meant.",
    },
    {
        "tier": 2,
        "condition": {
            "headers": {"List-Unsubscribe": ".", "List-ID": "."},
            "without_headers": ["List-Post", "In-Reply-To"],
            "without_labels": ["CATEGORY_FORUMS", "CATEGORY_PERSONAL"],
            "without_kinds": ["discussion"],
        },
        "note": "The same for senders that leave Precedence out.",
    },
    {
        "tier": 2,
        "condition": {"sender_pattern": _MACHINE, "headers": {"Auto-Submitted": "^auto-generated"}},
        "note": "A machine says that it wrote this, and its address says so too. Neither alone is enough.",
    },
)

SEED = TierPolicy("seed", parse_rules(RULES))
