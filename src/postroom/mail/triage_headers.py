"""The headers of a message that rules and the model may look at: all that its sender wrote, within bounds.

What servers add on the way (`Received`, signatures, seals) says how the mail travelled, fills most of a header block,
and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from postroom.mail.addresses import Address, parse_addresses
from postroom.mail.encoded_words import decode_words
from postroom.mail.headers import Headers, one_line

MOST_BYTES = 16_000
"""Of all names and values together."""
LONGEST_HEADER = 2_000
MOST_HEADERS = 100
_VALUES_READ = 20

_FIRST = (
    "from",
    "to",
    "cc",
    "reply-to",
    "message-id",
    "in-reply-to",
    "list-id",
    "list-unsubscribe",
    "precedence",
    "auto-submitted",
    "authentication-results",
)
"""What triage cannot do without: no flood of other headers pushes these out."""
_OF_ADDRESSES = frozenset({"from", "to", "cc", "reply-to", "sender", "bcc", "resent-from", "resent-to"})
_TOPMOST_ONLY = frozenset({"authentication-results"})
"""Our own server writes its verdict on top; one further down came with the mail and may be forged."""
_NOISE = frozenset(
    {
        "received",
        "received-spf",
        "return-path",
        "delivered-to",
        "x-received",
        "x-original-authentication-results",
        "dkim-signature",
        "domainkey-signature",
        "x-google-dkim-signature",
        "x-gm-message-state",
        "x-google-smtp-source",
        "x-gm-gg",
        "content-transfer-encoding",
        "mime-version",
        "references",
        "autocrypt",
        "face",
        "x-face",
    }
)
_NOT_LATER = _NOISE.union(_FIRST)
_NOISY_STARTS = ("arc-", "x-ms-exchange-", "x-microsoft-", "x-forefront-", "x-proofpoint-")


def triage_headers(headers: Headers) -> dict[str, str]:
    """By lowercase name, as text for people; of a header that stands several times, its values with commas between."""
    kept: dict[str, str] = {}
    left = MOST_BYTES
    for name in _in_order(headers):
        text = _text(headers, name)
        left -= len(name) + len(text.encode("utf-8", "replace"))
        if left < 0 or len(kept) == MOST_HEADERS:
            break
        kept[name] = text
    return kept


def _in_order(headers: Headers) -> Iterator[str]:
    names = headers.names
    yield from (name for name in _FIRST if name in names)
    yield from (name for name in names if name not in _NOT_LATER and not name.startswith(_NOISY_STARTS))


def _text(headers: Headers, name: str) -> str:
    values = headers.get_all(name)
    if name in _OF_ADDRESSES:
        is_short = sum(map(len, values)) <= LONGEST_HEADER
        if text := _short_addresses_text(values) if is_short else _addresses_text(parse_addresses(*values)):
            return text
    values = values[: 1 if name in _TOPMOST_ONLY else _VALUES_READ]
    lines = [one_line(decode_words(value[: 4 * LONGEST_HEADER])) for value in values]
    return ", ".join(filter(None, lines))[:LONGEST_HEADER]


@lru_cache(4_096)
def _short_addresses_text(values: tuple[str, ...]) -> str:
    """Most mail comes from few people, and goes to one."""
    return _addresses_text(parse_addresses(*values))


def _addresses_text(addresses: tuple[Address, ...]) -> str:
    """Whole addresses, each once, as many as there is room for, so that reading them again finds the same ones. Where
    there is too little, one of each domain comes first: a crowd of senders must not hide the one who is not of them."""
    once = list({address.canonical: address for address in reversed(addresses)}.values())[::-1]
    whole = ", ".join(map(_written, once))
    if len(whole) <= LONGEST_HEADER:
        return whole
    of_domain = {address.domain: address for address in reversed(once)}
    first = [address for address in once if of_domain[address.domain] is address]
    text = ""
    for address in [*first, *(address for address in once if of_domain[address.domain] is not address)]:
        longer = f"{text}, {address.address}" if text else address.address
        if len(longer) > LONGEST_HEADER:
            break
        text = longer
    return text


def _written(address: Address) -> str:
    """A name is quoted: one that was encoded may hold commas and addresses of its own."""
    name = address.display_name.replace("\\", "").replace('"', "")
    return f'"{name}" <{address.address}>' if name else address.address
