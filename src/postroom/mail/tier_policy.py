"""The tier policy (BF-20): how much of a message is kept and read. Rules are data; the first that matches decides.

Tier 1 takes a message in with its body, tier 2 only its headers, tier 3 leaves it out; no match is tier 1. A rule that
cannot be read is refused before it is used, with its name and the field. The policy that an installation starts with
stands at the end; it errs towards keeping: what is demoted says itself that it is bulk. That an address says no-reply
demotes nothing, because banks, doctors and airlines write from such addresses too.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from postroom.domain.errors import BadInput
from postroom.domain.validation import problem_text, shaped
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.header_features import is_bulk
from postroom.mail.headers import Headers
from postroom.mail.patterns import LONGEST_TEXT, Pattern, in_any_case
from postroom.mail.sender_kinds import KIND_HEADERS, Kind, MailKinds, kinds_of

MAX_RULES = 500
MAX_VALUES = 200
_LONGEST_PATTERN = 1_000
_LIST_HEADERS = ("List-Id", "List-Post", "List-Unsubscribe")


class Treatment(IntEnum):
    FULL = 1
    METADATA = 2
    SKIP = 3


@functools.lru_cache(maxsize=2_048)
def _pattern(pattern: str) -> Pattern:
    return in_any_case(pattern, "pattern")


def _check_pattern(pattern: str) -> str:
    try:
        _pattern(pattern)
    except BadInput as error:
        raise ValueError(error.problem[:200]) from None
    return pattern


def _check_domain(domain: str) -> str:
    normal = canonical_address(f"x@{domain}").partition("@")[2]
    if not normal or "@" in domain or any(ch.isspace() for ch in domain) or normal.startswith("."):
        raise ValueError(f"{domain[:100]!r} is not a domain")
    return normal


def _check_address(address: str) -> str:
    found = parse_addresses(address)
    if len(found) != 1 or "@" not in found[0].address:
        raise ValueError(f"{address[:100]!r} is not one mail address")
    return found[0].canonical


def _one_line(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("is one line of text")
    return text


_Text = Annotated[str, StringConstraints(min_length=1, max_length=300)]
_Pattern = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_PATTERN), AfterValidator(_check_pattern)]
_Domain = Annotated[_Text, AfterValidator(_check_domain)]
_Kind = Annotated[Kind, Field(strict=False)]
_Mailbox = Annotated[_Text, AfterValidator(_check_address)]
_HeaderName = Annotated[str, shaped(r"[!-9;-~]{1,200}", "is not the name of a header")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TierPolicyCondition(_Strict):
    """All that is given must hold; of a list, one entry is enough (`headers` and `without_*` mean every entry)."""

    sender: Annotated[list[_Mailbox], Field(max_length=MAX_VALUES)] = []
    sender_domain: Annotated[list[_Domain], Field(max_length=MAX_VALUES)] = []
    """Subdomains included."""
    sender_pattern: _Pattern | None = None
    """Searched in the address, lowercase."""
    subject: _Pattern | None = None
    headers: Annotated[dict[_HeaderName, _Pattern], Field(max_length=20)] = {}
    without_headers: Annotated[list[_HeaderName], Field(max_length=20)] = []
    labels: Annotated[list[_Text], Field(max_length=MAX_VALUES)] = []
    without_labels: Annotated[list[_Text], Field(max_length=MAX_VALUES)] = []
    bulk: bool | None = None
    """Whether a `Precedence` header speaks of a mass mailing."""
    kinds: Annotated[list[_Kind], Field(max_length=len(Kind))] = []
    """Kinds of sender that the headers speak of, all of them: `bulk`, `robot`, `person`, `spam_like`, `discussion`."""
    without_kinds: Annotated[list[_Kind], Field(max_length=len(Kind))] = []

    @property
    def is_empty(self) -> bool:
        return self == TierPolicyCondition()

    @property
    def asks_for_kinds(self) -> bool:
        return bool(self.kinds or self.without_kinds)


class TierPolicyRule(_Strict):
    tier: Annotated[int, Field(ge=1, le=3)]
    condition: TierPolicyCondition
    note: Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_one_line)]
    """What it is for, in a line. It names the rule wherever one is named."""
    enabled: bool = True

    @property
    def treatment(self) -> Treatment:
        return Treatment(self.tier)


@dataclass(frozen=True, slots=True)
class TierVerdict:
    treatment: Treatment
    rule: str | None
    """The note of the rule that decided; None where none matched."""


@dataclass(frozen=True)
class _Facts:
    """What rules look at, read once for all of them."""

    headers: Headers
    labels: frozenset[str]

    @functools.cached_property
    def senders(self) -> tuple[str, ...]:
        return tuple(each.canonical for each in parse_addresses(*self.headers.get_all("From")))

    @functools.cached_property
    def subject(self) -> str:
        return self.headers.text("Subject") or ""

    @functools.cached_property
    def bulk(self) -> bool:
        return is_bulk(self.headers)

    @functools.cached_property
    def kinds(self) -> MailKinds:
        return kinds_of(self.headers, self.labels)


def is_list_mail(headers: Headers) -> bool:
    """Whether it came through a mailing list or went to many subscribers (RFC 2919, RFC 2369, `Precedence`)."""
    return any(name in headers for name in _LIST_HEADERS) or is_bulk(headers)


@dataclass(frozen=True)
class TierPolicy:
    """Rules in order, under a version that changes with them."""

    version: str
    rules: tuple[TierPolicyRule, ...]

    def decide(self, headers: Headers, labels: Collection[str] = ()) -> TierVerdict:
        """`labels` are Gmail's ids of system labels (`SPAM`, `CATEGORY_PROMOTIONS`) and names of the user's own."""
        facts = _Facts(headers, frozenset(labels))
        for rule in self.rules:
            if rule.enabled and _holds(rule.condition, facts):
                return TierVerdict(rule.treatment, rule.note)
        return TierVerdict(Treatment.FULL, None)

    @property
    def headers_read(self) -> frozenset[str]:
        """The headers that any rule looks at; a connector need fetch no others."""
        named = {name for rule in self.rules for name in (*rule.condition.headers, *rule.condition.without_headers)}
        of_kinds = KIND_HEADERS if any(rule.condition.asks_for_kinds for rule in self.rules) else ()
        return frozenset({"From", "Subject", "Precedence", *of_kinds, *named})

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "rules": [rule.model_dump(exclude_defaults=True) for rule in self.rules]}


def parse_rule(data: object, where: str = "rule") -> TierPolicyRule:
    """A rule from JSON, or BadInput that names the rule and the field."""
    try:
        rule = TierPolicyRule.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        path = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        raise BadInput(
            f"{_named(data, where)}.{path}" if path else _named(data, where), problem_text(problem)
        ) from None
    if rule.condition.is_empty:
        raise BadInput(f"{_named(data, where)}.condition", "holds no condition, so the rule would match all mail")
    return rule


def parse_policy(data: object) -> TierPolicy:
    """The form that `to_json` gives, checked as if a stranger had written it."""
    if not isinstance(data, Mapping) or set(data) != {"version", "rules"}:
        raise BadInput("policy", "is an object with `version` and `rules`")
    version, rules = data["version"], data["rules"]
    if not isinstance(version, str) or not 0 < len(version) <= 100:
        raise BadInput("policy.version", "is a text of at most 100 characters")
    if not isinstance(rules, list) or len(rules) > MAX_RULES:
        raise BadInput("policy.rules", f"is a list of at most {MAX_RULES} rules")
    return TierPolicy(version, parse_rules(rules))


def parse_rules(rules: Iterable[object]) -> tuple[TierPolicyRule, ...]:
    return tuple(parse_rule(rule, f"rules[{number}]") for number, rule in enumerate(rules))


def _named(data: object, where: str) -> str:
    note = data.get("note") if isinstance(data, Mapping) else None
    return f"{where} ({note[:60]})" if isinstance(note, str) and note.isprintable() and note else where


def _holds(when: TierPolicyCondition, facts: _Facts) -> bool:
    return (
        _sender_holds(when, facts)
        and _labels_hold(when, facts)
        and _headers_hold(when, facts)
        and (not when.asks_for_kinds or _kinds_hold(when, facts.kinds))
    )


def _kinds_hold(when: TierPolicyCondition, found: MailKinds) -> bool:
    return all(found.is_a(kind) for kind in when.kinds) and not any(found.is_a(kind) for kind in when.without_kinds)


def _sender_holds(when: TierPolicyCondition, facts: _Facts) -> bool:
    """A message with two senders is from neither alone: each of them has to fit, or a forger needs only add one."""
    wanted = bool(when.sender or when.sender_domain or when.sender_pattern)
    return not wanted or (bool(facts.senders) and all(_is_sender(when, each) for each in facts.senders))


def _is_sender(when: TierPolicyCondition, address: str) -> bool:
    if when.sender and address not in when.sender:
        return False
    if when.sender_domain and not any(_within(address.rpartition("@")[2], each) for each in when.sender_domain):
        return False
    return when.sender_pattern is None or _found(when.sender_pattern, address)


def _within(domain: str, wanted: str) -> bool:
    return domain == wanted or domain.endswith(f".{wanted}")


def _labels_hold(when: TierPolicyCondition, facts: _Facts) -> bool:
    if when.labels and facts.labels.isdisjoint(when.labels):
        return False
    return facts.labels.isdisjoint(when.without_labels)


def _headers_hold(when: TierPolicyCondition, facts: _Facts) -> bool:
    if when.bulk is not None and when.bulk is not facts.bulk:
        return False
    if when.subject is not None and not _found(when.subject, facts.subject):
        return False
    if any(name in facts.headers for name in when.without_headers):
        return False
    return all(_header_matches(facts.headers, name, pattern) for name, pattern in when.headers.items())


def _header_matches(headers: Headers, name: str, pattern: str) -> bool:
    return any(_found(pattern, value) for value in headers.get_all(name))


def _found(pattern: str, text: str) -> bool:
    return _pattern(pattern).found_in(text[:LONGEST_TEXT])


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
