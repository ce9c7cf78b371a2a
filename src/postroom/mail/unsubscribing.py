"""`List-Unsubscribe` (RFC 2369) and one-click unsubscribing (RFC 8058): what a message of a list offers. Pure.

One click is offered only where the receiving server authenticated the sender, and a DKIM signature that it found good
covers both headers: without that, anyone could make a reader's program send requests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

from postroom.mail.addresses import parse_addresses
from postroom.mail.authentication import Authentication, authentication_of, receiving_results
from postroom.mail.headers import Headers, one_line

UNSUBSCRIBE, POST = "List-Unsubscribe", "List-Unsubscribe-Post"
ONE_CLICK_FORM = b"List-Unsubscribe=One-Click"
"""The body of the request, exactly as the standard says."""
LONGEST_ADDRESS = 2_000
_MOST_ADDRESSES = 20
_LONGEST_BODY = 2_000
_LONGEST_SUBJECT = 300
_DEFAULT = "unsubscribe"
_ADDRESS = re.compile(r"<([^<>]{1,4000})>")
_WRITTEN = re.compile(r"[\x21-\x7e]+")
_UNSAFE = re.compile(r"[\\\"']")
_RECIPIENT = re.compile(r"[^@\s<>,;:\"()\[\]\\]{1,250}@[^@\s<>,;:\"()\[\]\\]{1,250}")


class UnsubscribeWay(StrEnum):
    ONE_CLICK = "one_click"
    """Postroom asks the list's server."""
    MAIL = "mail"
    """The owner sends a mail."""
    LINK = "link"
    """The owner opens a page."""


@dataclass(frozen=True, slots=True)
class UnsubscribeMail:
    to: str
    subject: str
    body: str


@dataclass(frozen=True, slots=True)
class UnsubscribeOffer:
    way: UnsubscribeWay
    """The best that can be used."""
    link: str | None
    """An address of the web; https where one is given."""
    mail: UnsubscribeMail | None
    obstacle: str | None
    """Why one click cannot be used, though the message offers it."""

    @property
    def host(self) -> str:
        """Whom the link asks."""
        return (urlsplit(self.link).hostname or "") if self.link else ""


def link_host(value: str) -> str:
    """Whom unsubscribing by the web would contact, by the header's value; empty if it has no such address."""
    offer = unsubscribe_offer(Headers(((UNSUBSCRIBE, value),)), ())
    return "" if offer is None else offer.host


def unsubscribe_offer(headers: Headers, servers: Collection[str]) -> UnsubscribeOffer | None:
    """What the message offers; None if it offers nothing that can be used. `servers` are the receiving server's names
    in `Authentication-Results`."""
    addresses = list(_addresses(headers))
    links = sorted(filter(is_link, addresses), key=lambda each: not each.startswith("https://"))
    link = links[0] if links else None
    mail = next((found for each in addresses if (found := _mail(each)) is not None), None)
    if link is None and mail is None:
        return None
    obstacle = _obstacle(headers, link, servers) if POST in headers else None
    if POST in headers and obstacle is None:
        way = UnsubscribeWay.ONE_CLICK
    else:
        way = UnsubscribeWay.LINK if mail is None else UnsubscribeWay.MAIL
    return UnsubscribeOffer(way, link, mail, obstacle)


def _addresses(headers: Headers) -> Iterator[str]:
    """Spaces within an address were put there by folding."""
    values = headers.get_all(UNSUBSCRIBE)
    found = ["".join(each.split()) for value in values for each in _ADDRESS.findall(value[:16_000])]
    return iter(found[:_MOST_ADDRESSES])


def is_link(address: str) -> bool:
    """A plain address of the web, without a user's name before its host."""
    if len(address) > LONGEST_ADDRESS or not _WRITTEN.fullmatch(address) or _UNSAFE.search(address):
        return False
    try:
        parts = urlsplit(address)
        return parts.scheme in ("https", "http") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False


def _mail(address: str) -> UnsubscribeMail | None:
    """Recipient, subject and text; copies and other headers are not taken over."""
    if not address.lower().startswith("mailto:") or len(address) > LONGEST_ADDRESS:
        return None
    recipient, _, query = address[len("mailto:") :].partition("?")
    recipient = unquote(recipient, errors="replace")
    if not recipient.isprintable() or not _RECIPIENT.fullmatch(recipient):
        return None
    given = {name.lower(): value for name, value in reversed(parse_qsl(query.replace("+", "%2B"), errors="replace"))}
    subject = one_line(_shown(given.get("subject", "")))[:_LONGEST_SUBJECT]
    body = _shown(given.get("body", "")).strip()[:_LONGEST_BODY]
    return UnsubscribeMail(recipient, subject or _DEFAULT, body or _DEFAULT)


def _shown(text: str) -> str:
    return "".join(char if char == "\n" or char.isprintable() else " " for char in text)


def _obstacle(headers: Headers, link: str | None, servers: Collection[str]) -> str | None:
    """Why the one-click request must not be sent; None: it may be."""
    if len(headers.get_all(UNSUBSCRIBE)) != 1 or len(headers.get_all(POST)) != 1:
        return "a header of it stands there twice"
    if "".join((headers.get(POST) or "").split()).lower() != ONE_CLICK_FORM.decode().lower():
        return f"{POST} does not ask for one click"
    if link is None or not link.startswith("https://"):
        return "it has no https address"
    senders = parse_addresses(*headers.get_all("From"))
    if len(senders) != 1 or authentication_of(headers, servers, senders[0].domain) is not Authentication.PASSED:
        return "its sender is not authenticated"
    passed = {
        each.domain
        for each in receiving_results(headers, servers) or ()
        if each.method == "dkim" and each.value == "pass" and each.domain
    }
    if not any(signer in passed and covered >= _SIGNED for signer, covered in _signatures(headers)):
        return "no valid signature covers it"
    return None


_SIGNED = frozenset({UNSUBSCRIBE.lower(), POST.lower()})


def _signatures(headers: Headers) -> Iterator[tuple[str, frozenset[str]]]:
    """The domain of each DKIM signature, and the headers that it covers."""
    for value in headers.get_all("DKIM-Signature"):
        tags = {name.strip().lower(): text for name, _, text in (part.partition("=") for part in value.split(";"))}
        covered = frozenset(each.strip().lower() for each in tags.get("h", "").split(":"))
        yield "".join(tags.get("d", "").split()).lower().rstrip("."), covered
