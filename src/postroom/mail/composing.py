"""Mail to be sent: text, HTML, pictures and attachments, as RFC 5322 bytes, the same bytes each time.

No value can add a header or a recipient: line breaks and other control characters are refused, addresses are
checked, and every header is written here; only the body's structure is left to the standard library.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime

from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput
from postroom.mail.addresses import Address, canonical_address, canonical_set
from postroom.mail.charsets import encode_words
from postroom.mail.headers import REPLY_MARK
from postroom.mail.parsing import ParsedMail

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


WHOLE_MESSAGE = "message/rfc822"
MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}")
CHARSET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,39}")
_LINE_END = re.compile(rb"\r?\n")


@dataclass(frozen=True)
class OutgoingAttachment:
    filename: str
    content_type: str
    content: bytes
    content_id: str | None = None
    """Of a picture that the HTML shows, in angle brackets."""
    charset: str | None = None
    """Of a text."""


@dataclass(frozen=True)
class HtmlBytes:
    """HTML in the exact bytes that another message had, with the charset that it named."""

    content: bytes
    charset: str | None = None


def check_attachment(attachment: OutgoingAttachment) -> None:
    check_line("attachments", attachment.filename)
    if not attachment.filename:
        raise BadInput("attachments", "an attachment needs a file name")
    if attachment.content_id is not None:
        check_message_id("attachments", attachment.content_id)
    check_charset("attachments", attachment.charset)
    kind = attachment.content_type.lower()
    structured = kind.startswith(("multipart/", "message/")) and kind != WHOLE_MESSAGE
    if structured or not MEDIA_TYPE.fullmatch(kind):
        raise BadInput(
            "attachments", f"{attachment.content_type[:100]!r} is not a type of content that can be attached"
        )


def check_charset(field_name: str, charset: str | None) -> None:
    if charset is not None and not CHARSET.fullmatch(charset):
        raise BadInput(field_name, f"{charset[:40]!r} is not the name of a charset")


def attach(message: EmailMessage, attachment: OutgoingAttachment) -> None:
    maintype, _, subtype = attachment.content_type.partition("/")
    if attachment.content_type.lower() != WHOLE_MESSAGE:
        message.add_attachment(
            attachment.content,
            maintype=maintype,
            subtype=subtype,
            filename=attachment.filename,
            params=_charset_of(attachment.charset),
        )
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


def show_inline(html: EmailMessage, picture: OutgoingAttachment) -> None:
    """Beside the HTML that refers to it by its Content-ID."""
    maintype, _, subtype = picture.content_type.partition("/")
    html.add_related(
        picture.content,
        maintype=maintype,
        subtype=subtype,
        cid=picture.content_id,
        disposition="inline",
        filename=picture.filename,
    )


def _charset_of(charset: str | None) -> dict[str, str] | None:
    return None if charset is None else {"charset": charset}


MAX_REFERENCES = 50
REPORT_HEADER = "X-Postroom-Digest"
"""Of a report by Postroom to its owner, who sends it to himself. It is not judged when it arrives."""
_EXTRA_NAME = re.compile(r"X-[A-Za-z0-9-]{1,70}")
_AUTO_SUBMITTED = frozenset({"auto-replied", "auto-generated"})


@dataclass(frozen=True)
class OutgoingMail:
    """A message that has not been sent. Whatever cannot be sent safely is refused when it is made."""

    from_: Address
    to: tuple[Address, ...]
    subject: str
    text: str | None = None
    html: str | HtmlBytes | None = None
    cc: tuple[Address, ...] = ()
    bcc: tuple[Address, ...] = ()
    in_reply_to: str | None = None
    references: tuple[str, ...] = ()
    attachments: tuple[OutgoingAttachment, ...] = ()
    extra_headers: tuple[tuple[str, str], ...] = ()
    message_id: str | None = None
    date: datetime | None = None
    auto_submitted: str | None = None
    """`auto-replied` for what no person wrote, so that no other machine answers it (RFC 3834)."""

    def __post_init__(self) -> None:
        if not (self.to or self.cc or self.bcc):
            raise BadInput("to", "there is no recipient; name at least one")
        if self.text is None and self.html is None:
            raise BadInput("text", "the message has neither a text nor an HTML body")
        for field_name, addresses in self._address_fields():
            for address in addresses:
                check_address(field_name, address)
        check_line("subject", self.subject)
        for field_name, value in (("in_reply_to", self.in_reply_to), ("message_id", self.message_id)):
            if value is not None:
                check_message_id(field_name, value)
        for value in self.references:
            check_message_id("references", value)
        _check_extra(self.extra_headers)
        _check_auto_submitted(self.auto_submitted)
        for attachment in self.attachments:
            check_attachment(attachment)
        check_encodable("text", self.text or "")
        if isinstance(self.html, HtmlBytes):
            check_charset("html", self.html.charset)
        else:
            check_encodable("html", self.html or "")

    def _address_fields(self) -> tuple[tuple[str, tuple[Address, ...]], ...]:
        return ("from", (self.from_,)), ("to", self.to), ("cc", self.cc), ("bcc", self.bcc)

    def to_bytes(self) -> bytes:
        """The message with CRLF line ends, ready for `messages.send` or a draft."""
        head = "".join(f"{line}\r\n" for line in self._header_lines())
        body = self._body().as_bytes(policy=policy.SMTP)
        return head.encode("ascii") + with_whole_messages(body, self.attachments)

    def _header_lines(self) -> list[str]:
        lines = [
            folded(name.capitalize(), address_words(addresses))
            for name, addresses in self._address_fields()
            if addresses
        ]
        lines.append(folded("Subject", text_words(self.subject, len("Subject: "))))
        if self.date is not None:
            lines.append(f"Date: {format_datetime(require_utc(self.date, 'date'))}")
        for name, ids in (
            ("Message-ID", (self.message_id,)),
            ("In-Reply-To", (self.in_reply_to,)),
            ("References", bounded_references(self.references)),
        ):
            words = [value for value in ids if value]
            if words:
                lines.append(folded(name, words))
        if self.auto_submitted is not None:
            lines.append(f"Auto-Submitted: {self.auto_submitted}")
        return lines + [folded(name, text_words(value, len(name) + 2)) for name, value in self.extra_headers]

    def _body(self) -> EmailMessage:
        message = EmailMessage(policy=policy.SMTP)
        if self.text is not None:
            message.set_content(_with_final_line_end(self.text), cte=_transfer_encoding(self.text))
        if self.html is not None:
            self._add_html(message, self.html)
        html = message.get_body(("html",))
        for attachment in sorted(self.attachments, key=lambda each: each.content_id is None):
            if attachment.content_id is not None and isinstance(html, EmailMessage):
                show_inline(html, attachment)
            else:
                attach(message, attachment)
        self._name_boundaries(message)
        return message

    def _add_html(self, message: EmailMessage, html: str | HtmlBytes) -> None:
        add = message.set_content if self.text is None else message.add_alternative
        if isinstance(html, HtmlBytes):
            add(html.content, maintype="text", subtype="html", params=_charset_of(html.charset))
        else:
            add(_with_final_line_end(html), subtype="html", cte=_transfer_encoding(html))

    def _name_boundaries(self, message: EmailMessage) -> None:
        """Boundaries made from the content: a retry sends the same bytes, and no content can hold its own."""
        digest = hashlib.sha256(repr((self.text, self.html)).encode("utf-8"))
        for attachment in self.attachments:
            digest.update(hashlib.sha256(attachment.content).digest())
        for number, part in enumerate(part for part in message.walk() if part.is_multipart()):
            part.set_boundary(f"=_{digest.hexdigest()[:40]}_{number}")


def reply_to(
    original: ParsedMail,
    *,
    from_: Address,
    text: str | None = None,
    html: str | None = None,
    to: tuple[Address, ...] | None = None,
    reply_all: bool = False,
    attachments: tuple[OutgoingAttachment, ...] = (),
    extra_headers: tuple[tuple[str, str], ...] = (),
    auto_submitted: str | None = None,
) -> OutgoingMail:
    """An answer in the same conversation, to whom the original asks (Reply-To, else From; one's own mail: its To)."""
    own = from_.canonical
    recipients = to if to is not None else _sendable(_answered(original, own))
    cc = _others((*original.to, *original.cc), {own} | canonical_set(recipients)) if reply_all else ()
    return OutgoingMail(
        from_=from_,
        to=recipients,
        cc=cc,
        subject=marked_subject("Re:", original.subject, REPLY_MARK),
        text=text,
        html=html,
        in_reply_to=_usable_id(original.message_id),
        references=_chain(original),
        attachments=attachments,
        extra_headers=extra_headers,
        auto_submitted=auto_submitted,
    )


def bounded_references(references: tuple[str, ...]) -> tuple[str, ...]:
    """The first id, which names the conversation, and the latest ones."""
    if len(references) <= MAX_REFERENCES:
        return references
    return (references[0], *references[1 - MAX_REFERENCES :])


def _chain(original: ParsedMail) -> tuple[str, ...]:
    parents = original.references or ((original.in_reply_to,) if original.in_reply_to else ())
    ids = [usable for value in (*parents, original.message_id) if (usable := _usable_id(value))]
    return bounded_references(tuple(dict.fromkeys(ids)))


def _usable_id(value: str | None) -> str | None:
    return value if value and MESSAGE_ID.fullmatch(value) else None


def _answered(original: ParsedMail, own: str) -> tuple[Address, ...]:
    """Who asks for the answer. Only what the owner wrote is answered to its To: a stranger who names the owner as
    Reply-To, or no one as From, does not have others written to."""
    for addresses in (original.reply_to, original.from_):
        if any(address.canonical != own for address in addresses):
            return addresses
    return original.to if original.from_ else ()


def _sendable(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Those of a stranger's addresses that can be written to, each once."""
    unique = {address.canonical: address for address in addresses if address_problem(address.address) is None}
    return tuple(unique.values())


def _others(addresses: Iterable[Address], known: set[str]) -> tuple[Address, ...]:
    return tuple(address for address in _sendable(addresses) if address.canonical not in known)


def marked_subject(mark: str, subject: str, present: re.Pattern[str]) -> str:
    return subject if present.match(subject) else f"{mark} {subject}".strip()


def _transfer_encoding(text: str) -> str:
    """ASCII of moderate lines goes as it is, mostly-ASCII stays readable, anything else travels as base64."""
    if text.isascii() and "\r" not in text.replace("\r\n", "") and all(len(line) < 900 for line in text.split("\n")):
        return "7bit"
    non_ascii = sum(1 for char in text if char > "\x7f")
    return "quoted-printable" if non_ascii * 6 < len(text) else "base64"


def _with_final_line_end(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _check_extra(extra_headers: tuple[tuple[str, str], ...]) -> None:
    for name, value in extra_headers:
        if not _EXTRA_NAME.fullmatch(name):
            raise BadInput("extra_headers", f"{name[:100]!r} is not allowed; only X- headers can be added")
        check_line("extra_headers", value)


def _check_auto_submitted(value: str | None) -> None:
    if value is not None and value not in _AUTO_SUBMITTED:
        raise BadInput("auto_submitted", f"{value[:40]!r} is not one of {', '.join(sorted(_AUTO_SUBMITTED))}")
