"""What kind of sender a header speaks of: scores from 0 to 1 for `bulk`, `robot`, `person` and `spam_like`, for tier
policy and priority to use as conditions (DQ-4); and senders who imitate a well-known one. Pure.

Each score is the sum of what its signs weigh, put between 0 and 1. A sign is a plain fact about headers that a person
can check, and every verdict can name its signs. The weights of `spam_like` were fitted to half of a public corpus of
old mail (docs/categories.md); no word of that mail is in them.

Imitation is letters that look alike (`paypa1`, `netfIix`), or a known name with a word that frightens or pays beside it
(`bank-verify.top`): a guess that only ever takes trust away.

Headers are hostile: of long values only the first characters are looked at, and no pattern may begin with a repetition
that is tried again from every character (`[a-z]*\\d`), nor have two side by side that share characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, lru_cache

from postroom.mail.addresses import Address, parse_addresses
from postroom.mail.authentication import is_refuted
from postroom.mail.header_features import FREEMAIL, listed_words, split_domain, trades
from postroom.mail.headers import Headers
from postroom.mail.patterns import LONGEST_TEXT, fold

_SHORTEST = 5
_ALIKE = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "5": "s", "3": "e", "4": "a", "8": "b"})
_FRIGHTENING = listed_words("beside")
_DROPPED = re.compile(r"[^a-z0-9]+")


@lru_cache(16_384)
def imitated(name: str, address: str) -> str | None:
    """The well-known sender that this one pretends to be, or None."""
    own, _, _ = split_domain(address.rpartition("@")[2])
    if own in FREEMAIL:
        return _disguised(name)
    parts = [part for part in _DROPPED.split(own) if part]
    for part in parts:
        if found := _look_alike(part):
            return found
    return _disguised(name) or _with_a_threat(parts)


def _look_alike(part: str) -> str | None:
    known = trades()
    if part in known or len(part) < _SHORTEST:
        return None
    found = _skeletons().get(_skeleton(part))
    return found if found != part else None


def _disguised(name: str) -> str | None:
    """A name that reads like a known one, and is not written like it: `PayPaI` with a capital i."""
    for word in _plain_words(name):
        found = _look_alike(word)
        if found and word != found:
            return found
    return None


def _plain_words(name: str) -> Iterator[str]:
    for word in name.split():
        kept = "".join(char for char in word if char.isalnum())
        # A capital i or an l within small letters look alike; at the start of a word a capital is usual.
        yield _DROPPED.sub("", fold(kept))


def _with_a_threat(parts: list[str]) -> str | None:
    known = trades()
    named = [part for part in parts if len(part) > 3 and part in known]
    rest = [part for part in parts if part not in known]
    if named and any(_frightens(part) for part in rest):
        return named[0]
    return None


def _frightens(part: str) -> bool:
    return part in _FRIGHTENING or part.rstrip("0123456789") in _FRIGHTENING


def _skeleton(text: str) -> str:
    return text.translate(_ALIKE).replace("rn", "m").replace("vv", "w")


@cache
def _skeletons() -> dict[str, str]:
    return {_skeleton(name): name for name in sorted(trades(), reverse=True) if len(name) >= _SHORTEST}


_NO_REPLY = re.compile(
    r"(?:^|[._+-])(?:no|do[._-]?not|dont|nicht|nao|ne[._-]?pas|non|ikke|inte|ei)[._-]?(?:reply|respond|antworten|repondre|"
    r"responder|rispondere|svar|svara|vastata)|noreply|(?:^|[._+-])(?:mailer-?daemon|postmaster|robot|bot|cron|root|daemon|"
    r"notifications?|notify|alerts?|automated|auto(?:mail|confirm|reply)?|system|builds?|ci|monitoring|updates?)[0-9]*$"
)
_MASS = re.compile(
    r"(?:^|[._+-])(?:news|newsletters?|nieuwsbrief|nyhetsbrev|infolettre|boletin|bulletin|digest|offers?|deals?|marketing|"
    r"promos?|promotions?|sales?|angebote|ofertas?|campaigns?|specials?|mailing|editor)[0-9]*$"
)
_LIST_OWNER = re.compile(
    r"(?:^|<)(?:owner-[^@>]+|[^@<>]+-(?:admin|bounces?|owner|request|errors?|return[^@>]*))@", re.I
)
_LIST_HEADERS = ("List-Id", "List-Post", "X-BeenThere", "Mailing-List", "X-Mailing-List", "X-Loop", "X-Mailman-Version")
_TAG = re.compile(r"^\s*(?:\w{2,3}:\s*)*\[[^\]]{2,30}\]")
_REPLY = re.compile(r"^\s*(?:\[[^\]]*\]\s*)?(?:re|aw|antw|sv|vs|odp|fwd?|wg|tr|rv)(?:\[\d+\])?\s?:", re.I)
_PROGRAM = re.compile(
    r"mutt|pine|elm|gnus|emacs|evolution|kmail|sylpheed|thunderbird|mozilla|apple mail|eudora|outlook(?! express)|"
    r"iphone|ipad|android|the bat|vm |mh|mew|ximian|squirrelmail|horde|imp|entourage|claws|postbox|k-9|alpine|notes",
    re.I,
)
_BULK_PROGRAM = re.compile(
    r"bulk|mass ?mail|group ?mail|e-?mail ?(?:blaster|magnet)|advanced mass|dynamic|aureate|"
    r"jmail|stormpost|mailloop|vspam|version \d\.\d|microsoft outlook express|cdo|phpmailer",
    re.I,
)
_LURE = re.compile(
    r"\b(?:free|guarantee\w*|winner|won|win|prize|cash|income|earn\w*|money|profit\w*|rich|million\w*|debt\w*|credit|loans?|"
    r"mortgage\w*|refinanc\w*|rates?|insurance|invest\w*|stocks?|opportunit\w*|business proposal|viagra|cialis|pills?|"
    r"weight|diet|lose|younger|growth|hormone|enlarge\w*|sex\w*|adults?|porn\w*|xxx|nude|hot|girls?|teens?|singles|"
    r"casino|lott(?:o|ery)|toner|cartridges?|cable|software|cd|offers?|savings?|save|discount\w*|cheap\w*|lowest|"
    r"limited|urgent|confidential|assistance|click|now|today|approved|amazing|incredible|secrets?|best|buy|"
    r"unlimited|increase|email(?:s)? addresses|opt|adv|removal|beneficiary|inheritance|bitcoin|crypto|"
    r"gratis|gewinn\w*|gewonnen|kredit|verdienen|gagner|gagne\w*|argent|ganar|ganador|dinero|vincita|soldi|"
    r"wygral\w*|pieniadze)\b"
)
_TAIL = re.compile(r"(?<=\s\s\s)\S{2,}\s*$|\d[a-z]+\d*[\])]?\s*$|\b[bcdfghjklmnpqrstvwxz]{5,}\b", re.I)
_MONEY = re.compile(r"[$£€]\s?\d|\d\s?%|\$\$|\busd\b|\beuro?\b", re.I)
_ODD_ID = re.compile(r"^<?[0-9a-f]{6}[0-9a-z]*\$[0-9a-f$]+@|^<?\d+\.[a-z0-9]+@|^<?[a-z]{10,}@|[^<>\x21-\x7e]", re.I)
_NAMELESS = re.compile(r"from unknown|\(unknown|from \[?\d+\.\d+\.\d+\.\d+|\(\[\d+\.\d+\.\d+\.\d+\]\)|may be forged")
_PASSED = re.compile(r"\b(?:dmarc|dkim)\s*=\s*pass\b", re.I)
_ZONE = re.compile(r"[+-]\d{4}(?:\s|$)|gmt|utc|[ecmp][sd]t", re.I)


_OF_SUBJECT = (
    ("reply subject", _REPLY),
    ("tagged subject", _TAG),
    ("exclamation", re.compile("!")),
    ("shouting signs", re.compile(r"!!|\$\$|\*\*\*")),
    ("money in subject", _MONEY),
    ("random tail", _TAIL),
)
_OF_CONTENT = (
    ("only html", re.compile("^text/html")),
    ("signed", re.compile("^multipart/signed|pgp")),
    ("flowed text", re.compile("format=flowed")),
)


def _of_local_part(local: str) -> Iterator[str]:
    if _NO_REPLY.search(local):
        yield "no-reply address"
    if _MASS.search(local):
        yield "mass-mail address"


def _of_name(name: str) -> Iterator[str]:
    if not name.strip():
        yield "no name"
    elif "@" in name:
        yield "address as name"
    elif len(name.split()) == 2 and name.istitle():
        yield "name of two words"


KIND_HEADERS = (
    "From",
    "To",
    "Cc",
    "Subject",
    "Date",
    "Message-ID",
    "Reply-To",
    "Return-Path",
    "Sender",
    "Errors-To",
    "Received",
    "List-Unsubscribe",
    "Precedence",
    "Auto-Submitted",
    "In-Reply-To",
    "References",
    "Content-Type",
    "User-Agent",
    "X-Mailer",
    "X-Priority",
    "Authentication-Results",
    *_LIST_HEADERS,
)
"""The headers that signs are read from."""


class Kind(StrEnum):
    BULK = "bulk"
    ROBOT = "robot"
    PERSON = "person"
    SPAM_LIKE = "spam_like"
    DISCUSSION = "discussion"
    """A list on which people write."""


LEAST = {Kind.BULK: 0.5, Kind.ROBOT: 0.5, Kind.PERSON: 0.5, Kind.SPAM_LIKE: 0.5, Kind.DISCUSSION: 0.5}
"""The score from which on a message is of a kind."""


@dataclass(frozen=True, slots=True)
class MailKinds:
    """How far each kind fits, from 0 to 1, and the signs that were seen."""

    scores: Mapping[Kind, float]
    signs: tuple[str, ...]

    def is_a(self, kind: Kind) -> bool:
        return self.scores[kind] >= LEAST[kind]

    @property
    def is_unwanted(self) -> bool:
        """Too much like spam or a mailing to be served beside what people write. A robot alone is not: the doctor's
        confirmation comes from one."""
        if self.is_a(Kind.DISCUSSION):
            return False
        is_bulk = self.is_a(Kind.BULK) and not self.is_a(Kind.PERSON)
        return is_bulk or self.scores[Kind.SPAM_LIKE] >= _SUSPECT


class KindSigns:
    """The signs of one header block."""

    def __init__(self, headers: Headers, labels: Collection[str] = ()) -> None:
        self._headers = headers
        self._labels = labels

    def _start(self, name: str) -> str:
        """As much of the first value as is looked at; nothing where there is none."""
        return (self._headers.get(name) or "")[:LONGEST_TEXT]

    @cached_property
    def sender(self) -> Address | None:
        found = parse_addresses(self._headers.get("From") or "")
        return found[0] if found else None

    @cached_property
    def subject(self) -> str:
        return fold(self._headers.text("Subject") or "")

    @cached_property
    def all(self) -> frozenset[str]:
        return frozenset((*self.of_lists, *self._of_sender(), *self._of_subject(), *self._of_form(), *self._of_path()))

    @cached_property
    def of_lists(self) -> tuple[str, ...]:
        return tuple(self._of_lists())

    def _of_lists(self) -> Iterator[str]:
        headers = self._headers
        precedence = self._start("Precedence").lower()
        owned = any(_LIST_OWNER.search(self._start(name)) for name in ("Sender", "Errors-To", "Return-Path"))
        if any(name in headers for name in _LIST_HEADERS) or "list" in precedence or owned:
            yield "list"
            if "List-Post" in headers or "X-BeenThere" in headers or "list" in precedence or "Mailing-List" in headers:
                yield "discussion list"
        if "List-Unsubscribe" in headers:
            yield "unsubscribe"
        if "bulk" in precedence or "junk" in precedence:
            yield "precedence bulk"
        if "CATEGORY_PROMOTIONS" in self._labels:
            yield "gmail promotions"
        if "SPAM" in self._labels:
            yield "gmail spam"
        if (headers.get("Auto-Submitted") or "no").strip().lower()[:2] != "no":
            yield "auto-submitted"

    def _of_sender(self) -> Iterator[str]:
        sender = self.sender
        if sender is None:
            yield "no sender"
            return
        local, _, domain = sender.canonical.rpartition("@")
        yield "freemail" if split_domain(domain)[0] in FREEMAIL else "own domain"
        yield from _of_local_part(local)
        name = sender.display_name[:LONGEST_TEXT]
        yield from _of_name(name)
        if imitated(name, sender.canonical):
            yield "imitates a known sender"
        if is_refuted(self._headers, domain):
            yield "not authenticated"
        elif _PASSED.search(self._headers.get("Authentication-Results") or ""):
            yield "authenticated"

    def _of_subject(self) -> Iterator[str]:
        shown = (self._headers.text("Subject") or "")[:LONGEST_TEXT]
        if not shown.strip():
            yield "no subject"
            return
        yield from (name for name, form in _OF_SUBJECT if form.search(shown))
        if len(shown) > 6 and shown.isupper():
            yield "capitals"
        lures = len(_LURE.findall(self.subject))
        if lures:
            yield "several luring words" if lures > 1 else "luring word"
        if not (self._headers.get("Subject") or "").isascii():
            yield "raw bytes in subject"

    def _of_form(self) -> Iterator[str]:
        headers = self._headers
        kind = self._start("Content-Type").lower()
        yield from (name for name, form in _OF_CONTENT if form.search(kind))
        program = self._start("User-Agent") or self._start("X-Mailer")
        if _BULK_PROGRAM.search(program):
            yield "bulk or cheap program"
        elif _PROGRAM.search(program):
            yield "mail program"
        elif not program:
            yield "no program"
        if (headers.get("X-Priority") or "3").strip()[:1] in "12":
            yield "high priority"
        if "In-Reply-To" in headers or "References" in headers:
            yield "answers"

    def _of_path(self) -> Iterator[str]:
        headers = self._headers
        domain = self.sender.domain if self.sender else ""
        own = split_domain(domain)[0]
        message_id = self._start("Message-ID").strip()
        if own and message_id and own not in message_id.lower():
            yield "foreign message id"
        elif message_id and ("." not in message_id.rpartition("@")[2] or _ODD_ID.search(message_id)):
            yield "odd message id"
        for name, sign in (("Reply-To", "replies go elsewhere"), ("Return-Path", "returns go elsewhere")):
            found = parse_addresses(headers.get(name) or "")
            if found and domain and split_domain(found[0].domain)[0] != own:
                yield sign
        yield from self._of_route()
        yield from self._of_recipients()

    def _of_route(self) -> Iterator[str]:
        path = " ".join(self._headers.get_all("Received")).lower()
        if _NAMELESS.search(path):
            yield "hosts without names"
        if path and path.count("from ") <= 3:
            yield "short path"
        if "Date" in self._headers and not _ZONE.search(self._start("Date")):
            yield "odd date"

    def _of_recipients(self) -> Iterator[str]:
        to = self._headers.get("To") or ""
        if "To" in self._headers and ("@" not in to or "undisclosed" in to.lower()):
            yield "no recipient"
        elif any(each.display_name for each in parse_addresses(to)[:3]):
            yield "recipient by name"
        if "Cc" in self._headers:
            yield "copies"


BULK = {"unsubscribe": 2.0, "precedence bulk": 2.0, "gmail promotions": 2.0, "mass-mail address": 1.5, "only html": 0.5}
BULK |= {"list": 0.5, "discussion list": -4.0, "answers": -2.0, "reply subject": -1.0, "no recipient": 0.5}
ROBOT = {"no-reply address": 3.0, "auto-submitted": 3.0, "mass-mail address": 1.5, "name of two words": -1.0}
ROBOT |= {"answers": -2.0, "reply subject": -1.0, "mail program": -2.0, "flowed text": -1.0, "unsubscribe": 1.0}
PERSON = {"answers": 2.0, "reply subject": 1.0, "mail program": 2.0, "freemail": 1.0, "name of two words": 1.0}
PERSON |= {"signed": 2.0, "flowed text": 1.0, "recipient by name": 0.5, "copies": 0.5, "no-reply address": -4.0}
PERSON |= {"auto-submitted": -4.0, "mass-mail address": -3.0, "unsubscribe": -2.0, "precedence bulk": -2.0}
SPAM = {"odd date": 3.4, "several luring words": 3.1, "capitals": 3.1, "high priority": 3.0, "only html": 2.8}
SPAM |= {"hosts without names": 2.8, "no name": 2.5, "luring word": 1.6, "foreign message id": 1.6}
SPAM |= {"mass-mail address": 1.6, "exclamation": 1.2, "random tail": 1.2, "freemail": 1.2, "address as name": 1.2}
SPAM |= {"bulk or cheap program": 1.1, "copies": 1.1, "odd message id": 1.0, "returns go elsewhere": 1.0}
SPAM |= {"shouting signs": 0.9, "money in subject": 0.8, "raw bytes in subject": 0.6, "replies go elsewhere": 0.3}
SPAM |= {"no recipient": 0.3, "name of two words": 0.3, "flowed text": -0.3, "recipient by name": -0.3}
SPAM |= {"tagged subject": -0.6, "no program": -0.6, "list": -0.7, "mail program": -0.7, "reply subject": -1.5}
SPAM |= {"short path": -1.5, "answers": -3.0, "discussion list": -4.5}
# The corpus is older than authentication, so these are set by hand.
SPAM |= {"authenticated": -4.0, "not authenticated": 2.0, "imitates a known sender": 3.0}
_WEIGHTS = {
    Kind.BULK: (-2.5, BULK),
    Kind.ROBOT: (-1.5, ROBOT),
    Kind.PERSON: (-1.5, PERSON),
    Kind.SPAM_LIKE: (-3.6, SPAM),
}
_SUSPECT = 0.3
"""Less than what keeps a body from being read: a message that is not interactive is only served later."""


def kinds_of(headers: Headers, labels: Collection[str] = ()) -> MailKinds:
    """`labels` are Gmail's ids of system labels."""
    signs = KindSigns(headers, labels).all
    scores = {kind: _score(signs, start, weights) for kind, (start, weights) in _WEIGHTS.items()}
    scores[Kind.DISCUSSION] = float("discussion list" in signs)
    if "gmail spam" in signs:
        scores[Kind.SPAM_LIKE] = 1.0
    return MailKinds(scores, tuple(sorted(signs)))


def is_from_a_list(headers: Headers) -> bool:
    """Whether it came through a mailing list, also one that is older than List-Id."""
    return "list" in KindSigns(headers).of_lists


def _score(signs: Collection[str], start: float, weights: Mapping[str, float]) -> float:
    return 1.0 / (1.0 + math.exp(-(start + sum(weights.get(sign, 0.0) for sign in signs))))
