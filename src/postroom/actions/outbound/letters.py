"""What the job `outbound.send` is asked to send, and the mail composed from that, or the reason why it must not be
sent. Pure.

Postroom's own jobs name the action and leave the content out. A forwarded message is passed on whole, as a new
conversation: a note, who wrote what and when, and below it the message with its HTML, its pictures and its files, each
in the bytes that it came in. A message that taking it apart would spoil, or that cannot be taken apart for certain, is
enclosed as it is.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from html import escape
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from postroom.actions.outbound import loop_guard
from postroom.domain.actions import (
    LONGEST_BODY,
    MOST_ATTACHMENTS,
    MOST_RECIPIENTS,
    ActionType,
    FileParameters,
    ForwardParameters,
    LetterParameters,
    Parameters,
    ReplyParameters,
)
from postroom.domain.errors import BadInput, Fatal
from postroom.domain.jobs import OUTBOUND_SEND
from postroom.domain.validation import problem_text
from postroom.mail import composing
from postroom.mail.addresses import Address
from postroom.mail.html import html_to_text
from postroom.mail.mime import MimePart, attachment_of, decode_transfer
from postroom.mail.parsing import MAX_TEXT_BYTES, ParsedMail, is_body, leaves_of
from postroom.queue import NewJob
from postroom.reading.mail import read_mail

# Repeatable, so that an action retried by hand takes up its sending where it stood; what was sent is never sent again.


class MessageType(StrEnum):
    REPLY = "reply"
    FORWARD = "forward"


_TYPES = {ActionType.AUTO_REPLY: MessageType.REPLY, ActionType.FORWARD: MessageType.FORWARD}


def outbound_job(
    *, account_id: str, action_id: str, action_type: ActionType, message_id: str | None, thread_id: str | None
) -> NewJob:
    """The job that sends what an action wants sent, and then ends the action.

    To be enqueued in the transaction that marks the action as executing. It names things and holds no mail: recipients
    and text are those of the action's parameters, and the original is read when it is sent.
    """
    if action_type not in _TYPES:
        raise Fatal(f"{action_type} sends nothing.")
    payload = {
        "account_id": account_id,
        "action_id": action_id,
        "message_type": _TYPES[action_type],
        "original_message_id": message_id,
        "thread_id": thread_id,
    }
    return NewJob(OUTBOUND_SEND.name, payload, key=f"{OUTBOUND_SEND.name}:{account_id}:{action_id}")


_Address = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=320)]
_Addresses = Annotated[list[_Address], Field(max_length=MOST_RECIPIENTS)]
_Id = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class SendRequest(BaseModel):
    """What to send. Everything from `to` on is taken from the action and from the original where it is left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    account_id: _Id
    action_id: _Id
    message_type: MessageType
    original_message_id: _Id | None = None
    thread_id: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    to: _Addresses = []
    cc: _Addresses = []
    subject: Annotated[str, StringConstraints(max_length=1_000)] | None = None
    body_plain: Annotated[str, StringConstraints(max_length=LONGEST_BODY)] | None = None
    body_html: Annotated[str, StringConstraints(max_length=4 * LONGEST_BODY)] | None = None
    references: Annotated[list[Annotated[str, StringConstraints(max_length=998)]], Field(max_length=100)] = []
    attachments: Annotated[list[FileParameters], Field(max_length=MOST_ATTACHMENTS)] = []


def parse_request(payload: Mapping[str, Any]) -> SendRequest:
    try:
        return SendRequest.model_validate(payload)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        raise BadInput(".".join(map(str, problem["loc"])) or "payload", problem_text(problem)) from None


_SEALED = re.compile(r"(?i)\s*(multipart/(signed|encrypted)|application/(x-)?pkcs7-mime)\b")
_MARK = re.compile(r"(?i)^\s*(fwd?|wg|tr)\s*:")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CID = re.compile(rb"(?i)cid:([^\s\"'<>()]{1,990})")


@dataclass(frozen=True, slots=True)
class ForwardNote:
    """What its sender writes above a forward."""

    text: str = ""
    html: str | None = None


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A message taken apart, with nothing left out."""

    html: composing.HtmlBytes | None
    files: tuple[composing.OutgoingAttachment, ...]


def forward_of(
    original: ParsedMail,
    raw: bytes,
    *,
    from_: Address,
    to: tuple[Address, ...],
    cc: tuple[Address, ...] = (),
    subject: str | None = None,
    note: ForwardNote | None = None,
    attachments: tuple[composing.OutgoingAttachment, ...] = (),
    extra_headers: tuple[tuple[str, str], ...] = (),
) -> composing.OutgoingMail:
    """`raw` is the original, exactly as it came; `attachments` are sent along with it."""
    note = note or ForwardNote()
    pieces = None if travels_whole(original) else _taken_apart(raw)
    head = _introduction(original)
    html: str | composing.HtmlBytes | None
    if pieces is None:
        quoted, html = "", _html_around(note, head, "")
        carried: tuple[composing.OutgoingAttachment, ...] = (
            composing.OutgoingAttachment("forwarded message.eml", composing.WHOLE_MESSAGE, raw),
        )
    else:
        quoted, carried = f"\n\n{original.best_text}", pieces.files
        html = _html_of(note, head, pieces, original)
    return composing.OutgoingMail(
        from_=from_,
        to=to,
        cc=cc,
        subject=subject or composing.marked_subject("Fwd:", original.subject, _MARK),
        text=f"{note.text}\n\n{head}{quoted}".lstrip("\n"),
        html=html,
        attachments=(*carried, *attachments),
        extra_headers=extra_headers,
    )


def travels_whole(original: ParsedMail) -> bool:
    """Whether taking the message apart would spoil it: it could not be read, is signed or encrypted, invites to a
    meeting, holds messages of its own, or has nothing that could be quoted."""
    if original.trouble or _SEALED.match(original.headers.get("Content-Type") or "") or original.calendars:
        return True
    holds_mail = any(attachment.content_type.startswith("message/") for attachment in original.attachments)
    return holds_mail or not (original.best_text.strip() or original.attachments)


def _taken_apart(raw: bytes) -> _Pieces | None:
    """None where something would be lost or shown in another place than before."""
    problems: list[str] = []
    leaves = leaves_of(raw, problems)
    bodies = [part for part in leaves if is_body(part)]
    pages = [part for part in bodies if part.content_type == "text/html"]
    texts = [part for part in bodies if part.content_type == "text/plain"]
    if problems or not _are_one_body(pages, texts):
        return None
    html = _page(pages[0], problems) if pages else None
    shown = _shown(html)
    rest = [part for part in leaves if not is_body(part)]
    files = tuple(_file(number, part, shown, problems) for number, part in enumerate(rest, 1))
    return None if problems else _Pieces(html, files)


def _are_one_body(pages: Sequence[MimePart], texts: Sequence[MimePart]) -> bool:
    """Whether there is one page, or plain text, or both as two forms of the same."""
    if sum(part.end - part.start for part in texts) > MAX_TEXT_BYTES:
        return False
    if not pages or not texts:
        return len(pages) <= 1
    is_pair = len(pages) == len(texts) == 1
    return is_pair and texts[0].alternative is not None and texts[0].alternative == pages[0].alternative


def _page(part: MimePart, problems: list[str]) -> composing.HtmlBytes:
    content, problem = decode_transfer(part.body, part.transfer_encoding)
    charset = part.parameters.get("charset") or None
    if problem or not _is_like_ascii(charset) or bytes(content[:2]) in _UTF_16:
        problems.append(problem or "no ASCII can stand before this page")
    return composing.HtmlBytes(bytes(content), charset)


def _is_like_ascii(charset: str | None) -> bool:
    """Whether ASCII may stand before a text in this charset."""
    if charset is None:
        return True
    if not composing.CHARSET.fullmatch(charset):
        return False
    try:
        return "<a> &#1;".encode(charset) == b"<a> &#1;"
    except (LookupError, ValueError):
        return False


def _shown(html: composing.HtmlBytes | None) -> frozenset[bytes]:
    """The Content-IDs that the page refers to."""
    return frozenset(unquote_to_bytes(found) for found in _CID.findall(html.content)) if html else frozenset()


def _file(number: int, part: MimePart, shown: frozenset[bytes], problems: list[str]) -> composing.OutgoingAttachment:
    found = attachment_of(part, problems)
    kind = found.content_type if composing.MEDIA_TYPE.fullmatch(found.content_type) else "application/octet-stream"
    cid = f"<{found.content_id}>"
    is_shown = composing.MESSAGE_ID.fullmatch(cid) is not None and found.content_id.encode("utf-8", "replace") in shown
    charset = part.parameters.get("charset") or None
    return composing.OutgoingAttachment(
        found.filename or f"attachment-{number}",
        kind,
        found.content(),
        content_id=cid if is_shown else None,
        charset=charset if _is_like_ascii(charset) else None,
    )


def _html_of(note: ForwardNote, head: str, pieces: _Pieces, original: ParsedMail) -> composing.HtmlBytes | str | None:
    if pieces.html is None:
        return _html_around(note, head, f"<pre>{escape(original.best_text)}</pre>\n")
    above = _above(note.html or _as_html(note.text), head).encode("ascii", "xmlcharrefreplace")
    return composing.HtmlBytes(above + pieces.html.content, pieces.html.charset)


def _html_around(note: ForwardNote, head: str, below: str) -> str | None:
    """Where the original has no HTML, there is only as much as the note asks for."""
    return None if note.html is None else _above(note.html, head) + below


def _above(note: str, head: str) -> str:
    return f"<div>{note}</div>\n<br>\n<div>{_as_html(head)}</div>\n<br>\n"


def _as_html(text: str) -> str:
    return escape(text).replace("\n", "<br>\n")


def _introduction(original: ParsedMail) -> str:
    lines = ["---------- Forwarded message ---------", f"From: {_listed(original.from_)}"]
    if original.date is not None:
        lines.append(f"Date: {original.date:%Y-%m-%d %H:%M} UTC")
    lines += [f"Subject: {original.subject}", f"To: {_listed(original.to)}"]
    return "\n".join(lines + ([f"Cc: {_listed(original.cc)}"] if original.cc else []))


def _listed(addresses: tuple[Address, ...]) -> str:
    return ", ".join(str(address) for address in addresses)


LARGEST = 25 << 20
"""Gmail sends no more, encoded for the way."""


@dataclass(frozen=True, slots=True)
class Original:
    """The message that is answered or forwarded."""

    raw: bytes
    mail: ParsedMail
    labels: frozenset[str]

    @classmethod
    def of(cls, raw: bytes, labels: Collection[str] = ()) -> Original:
        return cls(raw, read_mail(raw), frozenset(labels))


@dataclass(frozen=True, slots=True)
class Author:
    """The sender."""

    address: str
    own: Collection[str]
    """The addresses of all accounts, to which nothing is sent automatically."""
    name: str = ""
    is_person: bool = False
    """A person wrote or ordered this mail: it is not automatic, and no guard against mail loops holds it."""
    is_attended: bool = False
    """A person ordered or approved this mail, and so its recipients."""


@dataclass(frozen=True, slots=True)
class SendRefused:
    """Why it is not sent, now or later."""

    reason: str
    is_routine: bool = False
    """A guard did what it is for, and no one has to look."""


def compose(
    request: SendRequest, parameters: Parameters, files: Sequence[bytes], original: Original, author: Author
) -> composing.OutgoingMail | SendRefused:
    """`files` are the contents of the attachments that the parameters name."""
    if original.mail.trouble and not author.is_person:
        # Without its headers a mail loop cannot be ruled out.
        return SendRefused(f"not sent: the message could not be read ({original.mail.trouble}); answer it yourself")
    try:
        match request.message_type, parameters:
            case MessageType.REPLY, ReplyParameters():
                letter = _reply(_filled(request, parameters), parameters, files, original, author)
            case MessageType.FORWARD, ForwardParameters():
                letter = _forward(_filled(request, parameters), parameters, files, original, author)
            case _:
                raise Fatal(f"The action is no {request.message_type}.")
    except BadInput as error:
        return SendRefused(error.message)
    return letter if isinstance(letter, SendRefused) else _within_limit(letter)


def _filled(request: SendRequest, parameters: LetterParameters) -> SendRequest:
    """What the payload leaves out is as the action wants it."""
    wanted = {
        "to": parameters.to,
        "cc": parameters.cc,
        "subject": parameters.subject,
        "body_plain": parameters.text,
        "body_html": parameters.body_html,
        "references": parameters.references if isinstance(parameters, ReplyParameters) else [],
    }
    return request.model_copy(update={name: getattr(request, name) or value for name, value in wanted.items()})


def _reply(
    request: SendRequest, parameters: LetterParameters, files: Sequence[bytes], original: Original, author: Author
) -> composing.OutgoingMail | SendRefused:
    if not author.is_person and (problem := loop_guard.unanswerable(original.mail, original.labels, author.own)):
        return SendRefused(f"not answered: {problem}", is_routine=True)
    text, html = request.body_plain, request.body_html
    letter = composing.reply_to(
        original.mail,
        from_=Address(author.address, author.name),
        to=_addresses(request.to) or None,
        text=html_to_text(html, LONGEST_BODY) if text is None and html is not None else text,
        html=html,
        attachments=_attachments(request, parameters, files),
        extra_headers=_marks(request),
        auto_submitted=None if author.is_person else "auto-replied",
    )
    letter = replace(
        letter,
        cc=_addresses(request.cc),
        subject=request.subject or letter.subject,
        references=tuple(request.references) or letter.references,
    )
    problem = None if author.is_person else loop_guard.misdirected_reply(letter, author.own)
    if problem:
        return SendRefused(f"not answered: {problem}", is_routine=True)
    if not author.is_attended and (problem := loop_guard.diverted_reply(original.mail, letter)):
        return SendRefused(f"not answered: {problem}; approve it, or answer yourself", is_routine=True)
    return letter


def _forward(
    request: SendRequest, parameters: LetterParameters, files: Sequence[bytes], original: Original, author: Author
) -> composing.OutgoingMail | SendRefused:
    if len(original.raw) > LARGEST:
        return _too_large(len(original.raw))
    letter = forward_of(
        original.mail,
        original.raw,
        from_=Address(author.address, author.name),
        to=_addresses(request.to),
        cc=_addresses(request.cc),
        subject=request.subject,
        note=ForwardNote(request.body_plain or "", request.body_html),
        attachments=_attachments(request, parameters, files),
        extra_headers=_marks(request),
    )
    problem = None if author.is_person else loop_guard.looping_forward(original.mail, letter, author.own)
    return SendRefused(f"not forwarded: {problem}", is_routine=True) if problem else letter


def _within_limit(letter: composing.OutgoingMail) -> composing.OutgoingMail | SendRefused:
    size = len(letter.to_bytes())
    return _too_large(size) if size > LARGEST else letter


def _too_large(size: int) -> SendRefused:
    most = LARGEST >> 20
    return SendRefused(f"not sent: the mail has {size / (1 << 20):.1f} MB, and Gmail sends no more than {most} MB")


def _marks(request: SendRequest) -> tuple[tuple[str, str], ...]:
    return ((loop_guard.ACTION_HEADER, request.action_id),)


def _attachments(
    request: SendRequest, parameters: LetterParameters, files: Sequence[bytes]
) -> tuple[composing.OutgoingAttachment, ...]:
    if request.attachments:
        named, contents = request.attachments, [each.content() for each in request.attachments]
    else:
        named, contents = parameters.attachments, list(files)
    if len(named) != len(contents):
        raise BadInput("attachments", "are no longer stored; write the mail again")
    return tuple(
        composing.OutgoingAttachment(each.filename, each.mime_type, content)
        for each, content in zip(named, contents, strict=True)
    )


def _addresses(texts: Collection[str]) -> tuple[Address, ...]:
    return tuple(Address(text) for text in texts)
