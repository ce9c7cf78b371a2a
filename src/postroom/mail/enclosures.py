"""What travels with outgoing mail: files, and whole messages as they are (`message/rfc822`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import EmailMessage

from postroom.domain.errors import BadInput
from postroom.mail.header_writing import check_line
from postroom.mail.parsing import ParsedMail

WHOLE_MESSAGE = "message/rfc822"
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}")
_LINE_END = re.compile(rb"\r?\n")
_SEALED = re.compile(r"(?i)\s*(multipart/(signed|encrypted)|application/(x-)?pkcs7-mime)\b")


@dataclass(frozen=True)
class OutgoingAttachment:
    filename: str
    content_type: str
    content: bytes


def check_attachment(attachment: OutgoingAttachment) -> None:
    check_line("attachments", attachment.filename)
    if not attachment.filename:
        raise BadInput("attachments", "an attachment needs a file name")
    kind = attachment.content_type.lower()
    structured = kind.startswith(("multipart/", "message/")) and kind != WHOLE_MESSAGE
    if structured or not _MEDIA_TYPE.fullmatch(kind):
        raise BadInput(
            "attachments", f"{attachment.content_type[:100]!r} is not a type of content that can be attached"
        )


def attach(message: EmailMessage, attachment: OutgoingAttachment) -> None:
    maintype, _, subtype = attachment.content_type.partition("/")
    if attachment.content_type.lower() != WHOLE_MESSAGE:
        message.add_attachment(attachment.content, maintype=maintype, subtype=subtype, filename=attachment.filename)
        return
    cte = "7bit" if attachment.content.isascii() else "8bit"
    message.add_attachment(
        _place_of(attachment), maintype=maintype, subtype=subtype, cte=cte, filename=attachment.filename
    )


def with_whole_messages(body: bytes, attachments: Iterable[OutgoingAttachment]) -> bytes:
    """The finished body with whole messages put in their places.

    A message within a message must not be encoded (RFC 2046 5.2.1), and its signatures hold for these very bytes; the
    standard library would write it anew.
    """
    for attachment in attachments:
        if attachment.content_type.lower() == WHOLE_MESSAGE:
            body = body.replace(_place_of(attachment), _LINE_END.sub(b"\r\n", attachment.content))
    return body


def _place_of(attachment: OutgoingAttachment) -> bytes:
    return b"=_place_" + hashlib.sha256(attachment.content).hexdigest().encode()


def carried_over(original: ParsedMail) -> Iterable[OutgoingAttachment]:
    """The attachments of a message that is passed on."""
    for number, attachment in enumerate(original.attachments, 1):
        known = _MEDIA_TYPE.fullmatch(attachment.content_type) and not attachment.content_type.startswith("message/")
        content_type = attachment.content_type if known else "application/octet-stream"
        yield OutgoingAttachment(attachment.filename or f"attachment-{number}", content_type, attachment.content())


def travels_whole(original: ParsedMail) -> bool:
    """Whether taking the message apart would spoil it: it is signed or encrypted, invites to a meeting, holds messages
    of its own, or has nothing that could be quoted."""
    if _SEALED.match(original.headers.get("Content-Type") or "") or original.calendars:
        return True
    holds_mail = any(attachment.content_type.startswith("message/") for attachment in original.attachments)
    return holds_mail or not (original.best_text.strip() or original.attachments)


def as_enclosure(raw: bytes) -> OutgoingAttachment:
    return OutgoingAttachment("forwarded message.eml", WHOLE_MESSAGE, raw)
