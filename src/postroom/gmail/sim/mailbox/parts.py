"""MIME parts and header lines, in the many ways in which mail programs write them."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import quote

from postroom.gmail.sim.mailbox.dice import Dice
from postroom.gmail.sim.mailbox.files import MAKERS
from postroom.gmail.sim.mailbox.letters import File
from postroom.gmail.sim.mailbox.party import Party

_SPECIAL = frozenset('",:;<>@()[]\\')
_WORD_CHARS = 10  # short enough for any charset to stay within an encoded word's 75 characters


@dataclass(frozen=True, slots=True)
class Piece:
    """A part: its Content headers and its body."""

    headers: bytes
    body: bytes

    def __bytes__(self) -> bytes:
        return self.headers + b"\r\n" + self.body


def header_text(text: str, charset: str) -> str:
    """ASCII as it is, anything else as encoded words in this charset."""
    if text.isascii():
        return text
    chunks = (text[start : start + _WORD_CHARS] for start in range(0, len(text), _WORD_CHARS))
    words = (f"=?{charset}?b?{base64.b64encode(chunk.encode(charset)).decode()}?=" for chunk in chunks)
    return "\r\n ".join(words)


def mailbox_text(party: Party) -> str:
    if not party.name:
        return party.address
    name = party.name
    if _SPECIAL & set(name):
        return f'"{name}" <{party.address}>'
    return f"{header_text(name, 'utf-8')} <{party.address}>"


def text_piece(
    text: str, subtype: str, charset: str, dice: Dice, *, declared: str = "", damaged: bool = False
) -> Piece:
    data = text.encode(charset)
    encoding = "base64" if damaged else _transfer_encoding(data, charset, dice)
    if encoding == "base64":
        body = base64.encodebytes(data).replace(b"\n", b"\r\n")
    elif encoding == "quoted-printable":
        body = binascii.b2a_qp(data, istext=True)
    else:
        body = data
    if damaged:
        # One digit too many: six bits that make no byte.
        body = body.rstrip(b"=\r\n")
        body += b"A" * ((1 - len(b"".join(body.split()))) % 4)
    head = f"Content-Type: text/{subtype}; charset={declared or charset}\r\nContent-Transfer-Encoding: {encoding}\r\n"
    return Piece(head.encode("ascii"), body)


def _transfer_encoding(data: bytes, charset: str, dice: Dice) -> str:
    if charset == "iso-2022-jp" or (data.isascii() and dice.chance(700)):
        return "7bit"
    return dice.pick(("quoted-printable", "quoted-printable", "base64", "8bit"))


def file_piece(file: File, dice: Dice) -> Piece:
    content = MAKERS[file.content_type](dice, file.size)
    disposition = "inline" if file.inline else "attachment"
    head = (
        f"Content-Type: {file.content_type}\r\nContent-Transfer-Encoding: base64\r\n"
        f"Content-Disposition: {disposition}; {_file_name(file.name, dice)}\r\n"
    )
    return Piece(head.encode("ascii"), base64.encodebytes(content).replace(b"\n", b"\r\n"))


def _file_name(name: str, dice: Dice) -> str:
    if name.isascii():
        return f'filename="{name}"'
    if dice.chance(500):
        return f"filename*=utf-8''{quote(name)}"
    return f'filename="=?utf-8?b?{base64.b64encode(name.encode()).decode()}?="'


def multipart(kind: str, pieces: list[Piece], dice: Dice, *, closed: bool = True, extra: str = "") -> Piece:
    boundary = f"=_{dice.draw():016x}"
    line = f"--{boundary}".encode("ascii")
    body = b"".join(line + b"\r\n" + bytes(piece) + b"\r\n" for piece in pieces) + (line + b"--\r\n" if closed else b"")
    return Piece(f'Content-Type: multipart/{kind}; boundary="{boundary}"{extra}\r\n'.encode("ascii"), body)
