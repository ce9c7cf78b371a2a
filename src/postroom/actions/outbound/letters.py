"""Composes the mail that an action sends, or gives the reason why it must not be sent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from postroom.actions.outbound import loop_guard
from postroom.actions.outbound.forwarding import ForwardNote, forward_of
from postroom.actions.outbound.request import MessageType, SendRequest
from postroom.domain.actions import LONGEST_BODY, ForwardParameters, LetterParameters, Parameters, ReplyParameters
from postroom.domain.errors import BadInput, Fatal
from postroom.mail.addresses import Address
from postroom.mail.composing import OutgoingAttachment, OutgoingMail, reply_to
from postroom.mail.html.text import html_to_text
from postroom.mail.parsing import ParsedMail
from postroom.reading.mail import read_mail

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
) -> OutgoingMail | SendRefused:
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
) -> OutgoingMail | SendRefused:
    if not author.is_person and (problem := loop_guard.unanswerable(original.mail, original.labels, author.own)):
        return SendRefused(f"not answered: {problem}", is_routine=True)
    text, html = request.body_plain, request.body_html
    letter = reply_to(
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
) -> OutgoingMail | SendRefused:
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


def _within_limit(letter: OutgoingMail) -> OutgoingMail | SendRefused:
    size = len(letter.to_bytes())
    return _too_large(size) if size > LARGEST else letter


def _too_large(size: int) -> SendRefused:
    most = LARGEST >> 20
    return SendRefused(f"not sent: the mail has {size / (1 << 20):.1f} MB, and Gmail sends no more than {most} MB")


def _marks(request: SendRequest) -> tuple[tuple[str, str], ...]:
    return ((loop_guard.ACTION_HEADER, request.action_id),)


def _attachments(
    request: SendRequest, parameters: LetterParameters, files: Sequence[bytes]
) -> tuple[OutgoingAttachment, ...]:
    if request.attachments:
        named, contents = request.attachments, [each.content() for each in request.attachments]
    else:
        named, contents = parameters.attachments, list(files)
    if len(named) != len(contents):
        raise BadInput("attachments", "are no longer stored; write the mail again")
    return tuple(
        OutgoingAttachment(each.filename, each.mime_type, content)
        for each, content in zip(named, contents, strict=True)
    )


def _addresses(texts: Collection[str]) -> tuple[Address, ...]:
    return tuple(Address(text) for text in texts)
