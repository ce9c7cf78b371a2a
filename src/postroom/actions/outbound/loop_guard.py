"""What must never be answered or forwarded automatically, so that no two machines write to each other.

Pure. Each check returns the reason for people, or None if nothing speaks against it. Replies follow RFC 3834.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from postroom.mail.addresses import Address, canonical_address
from postroom.mail.composing import REPORT_HEADER, OutgoingMail
from postroom.mail.parsing import ParsedMail

ACTION_HEADER = "X-Postroom-Action"
MOST_HOPS = 30
MOST_ANSWERED = 3
"""A Reply-To may not turn one automatic answer into many."""

_BULK = frozenset({"bulk", "list", "junk", "auto_reply"})
_LIST_HEADERS = (
    "List-Id",
    "List-Unsubscribe",
    "List-Unsubscribe-Post",
    "List-Post",
    "List-Help",
    "List-Subscribe",
    "List-Owner",
    "List-Archive",
    "Mailing-List",
    "X-Mailing-List",
)
_MACHINE_HEADERS = ("Feedback-ID", "X-Autoreply", "X-Autorespond", "X-Autoresponder", "X-Loop", "X-Failed-Recipients")
_UNREAD_ADDRESS = re.compile(
    r"(^|[._+-])(no|not|never|dont?|do-?not|do_not)[._-]?(reply|respond|answer)"
    r"|(^|[._+-])(mailer-daemon|mailerdaemon|postmaster|bounces?|daemon|autoresponder|undeliverable)($|[._+-])"
    r"|(^|[._+-])(nicht-?antworten|ne-?pas-?repondre|no-?responder|nao-?responda|noresponder|nichtantworten)"
)


def unanswerable(original: ParsedMail, labels: Collection[str], own: Collection[str]) -> str | None:
    """Why this message must not be answered automatically."""
    if "SPAM" in labels:
        return "the message is in spam"
    checks: tuple[Callable[[ParsedMail], str | None], ...] = (_own_action, _automatic, _bulk, _bounced)
    for check in checks:
        if problem := check(original):
            return problem
    senders = (*original.from_, *original.sender)
    return _unread(senders) or _to_oneself(senders, own)


def misdirected_reply(letter: OutgoingMail, own: Collection[str]) -> str | None:
    """Why a reply must not go to those it is addressed to."""
    addressed = (*letter.to, *letter.cc, *letter.bcc)
    if len(addressed) > MOST_ANSWERED:
        return f"the answer would go to {len(addressed)} addresses; an automatic one goes to {MOST_ANSWERED} at most"
    return _unread(addressed) or _to_oneself(addressed, own)


def diverted_reply(original: ParsedMail, letter: OutgoingMail) -> str | None:
    """Why an unattended reply must not go where the message asks for it: a sender's name is easily forged, and
    `Reply-To` then carries the owner's words to the forger."""
    homes = {_domain(each) for each in original.from_}
    for address in (*letter.to, *letter.cc, *letter.bcc):
        there = _domain(address)
        if not any(there == home or _is_within(there, home) or _is_within(home, there) for home in homes):
            return f"the answer would go to {address.address}, which is not of the sender's domain (Reply-To)"
    return None


def looping_forward(original: ParsedMail, letter: OutgoingMail, own: Collection[str]) -> str | None:
    """Why a message must not be forwarded."""
    hops = len(original.headers.get_all("Received"))
    if hops > MOST_HOPS:
        return f"the message has passed {hops} servers already; it goes round in a circle"
    return _own_action(original) or _to_oneself((*letter.to, *letter.cc, *letter.bcc), own)


def folded(address: str) -> str:
    """The mailbox behind an address: tags (`+shopping`) are left out, and what Gmail ignores."""
    local, at, domain = canonical_address(address, fold_gmail=True).rpartition("@")
    return f"{local.partition('+')[0] or local}{at}{domain}"


def _domain(address: Address) -> str:
    return address.canonical.rpartition("@")[2]


def _is_within(domain: str, other: str) -> bool:
    return domain.endswith(f".{other}")


def _own_action(original: ParsedMail) -> str | None:
    if ACTION_HEADER in original.headers or REPORT_HEADER in original.headers:
        return "Postroom itself sent the message"
    return None


def _automatic(original: ParsedMail) -> str | None:
    if (original.auto_submitted or "no") != "no":
        return "a machine sent the message (Auto-Submitted)"
    suppressed = (original.headers.get("X-Auto-Response-Suppress") or "none").strip().lower()
    if suppressed != "none":
        return "its sender asks for no automatic answers (X-Auto-Response-Suppress)"
    found = next((name for name in _MACHINE_HEADERS if name in original.headers), None)
    return None if found is None else f"a machine sent the message ({found})"


def _bulk(original: ParsedMail) -> str | None:
    if (original.precedence or "") in _BULK:
        return f"it is bulk mail (Precedence: {original.precedence})"
    found = next((name for name in _LIST_HEADERS if name in original.headers), None)
    return None if found is None else f"it came over a mailing list ({found})"


def _bounced(original: ParsedMail) -> str | None:
    if any(value.strip() in ("", "<>") for value in original.headers.get_all("Return-Path")):
        return "it has no address for answers (an empty Return-Path): a report of a mail server"
    kind = (original.headers.get("Content-Type") or "").lower()
    return "it is a report of a mail server" if kind.startswith("multipart/report") else None


def _unread(addresses: Iterable[Address]) -> str | None:
    for address in addresses:
        if _UNREAD_ADDRESS.search(address.canonical.rpartition("@")[0]):
            return f"no one reads mail to {address.address}"
    return None


def _to_oneself(addresses: Iterable[Address], own: Collection[str]) -> str | None:
    mine = {folded(each) for each in own}
    for address in addresses:
        if folded(address.address) in mine:
            return f"{address.address} is a mailbox of yours"
    return None
