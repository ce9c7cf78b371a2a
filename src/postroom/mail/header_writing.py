"""Headers of outgoing mail: what may stand in them, and how it is put on lines that every reader reads alike."""

from __future__ import annotations

import re

from postroom.domain.errors import BadInput
from postroom.mail.addresses import Address, canonical_address
from postroom.mail.charsets import encode_words

_LINE = 76
_LONGEST_WORD = 900  # RFC 5322 allows 998 a line
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\- ]+")
_LOCAL = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-.]{1,64}")
_DOMAIN = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,990}>")


def address_words(addresses: tuple[Address, ...]) -> list[str]:
    words: list[str] = []
    for position, address in enumerate(addresses):
        words += _name_words(address.display_name)
        target = canonical_domain(address.address)
        comma = "," if position < len(addresses) - 1 else ""
        words.append(f"<{target}>{comma}" if address.display_name else f"{target}{comma}")
    return words


def canonical_domain(address: str) -> str:
    """The local part as it was given (its case may matter to the receiver), the domain in ASCII."""
    return f"{address.rpartition('@')[0]}@{canonical_address(address).rpartition('@')[2]}"


def _name_words(name: str) -> list[str]:
    if not name:
        return []
    if not name.isascii() or "=?" in name or len(name) > _LINE:
        return encode_words(name)
    if _ATOMS.fullmatch(name) and name == " ".join(name.split()):
        return [name]
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return [f'"{escaped}"']


def text_words(text: str, offset: int) -> list[str]:
    """Words to be put on lines; encoded wherever folding and unfolding would not give the same text back."""
    words = text.split(" ")
    plain = text.isascii() and "=?" not in text and all(words) and max(map(len, words)) + offset < _LONGEST_WORD
    return words if plain or not text else encode_words(text)


def folded(name: str, words: list[str]) -> str:
    lines, line = [], f"{name}:"
    for word in words:
        if len(line) + 1 + len(word) > _LINE and line != f"{name}:":
            lines.append(line)
            line = ""
        line += f" {word}"
    return "\r\n".join([*lines, line])


def check_line(field_name: str, value: str) -> None:
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise BadInput(field_name, "line breaks, NULs and other control characters are not allowed in a header")
    check_encodable(field_name, value)


def check_encodable(field_name: str, value: str) -> None:
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise BadInput(field_name, "holds NULs or halves of characters (lone surrogates), which no mail can carry")


def check_address(field_name: str, address: Address) -> None:
    check_line(field_name, address.display_name)
    check_line(field_name, address.address)
    problem = address_problem(address.address)
    if problem:
        raise BadInput(field_name, problem)


def address_problem(address: str) -> str | None:
    local, at, domain = address.rpartition("@")
    if not at or not _LOCAL.fullmatch(local) or local.startswith(".") or local.endswith(".") or ".." in local:
        return f"{address[:100]!r} is not an address that mail can be sent to; write for example ana@example.org"
    if not _DOMAIN.fullmatch(canonical_address(f"x@{domain}")[2:]):
        return f"{address[:100]!r} names a domain that cannot exist"
    return None


def check_message_id(field_name: str, value: str) -> None:
    if not MESSAGE_ID.fullmatch(value):
        raise BadInput(field_name, f"{value[:100]!r} is not a message id; write for example <abc@example.org>")
