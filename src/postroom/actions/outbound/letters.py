"""Composes the mail that an action sends, or gives the reason why it must not be sent. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import assert_never

from postroom.actions.outbound import loop_guard
from postroom.actions.outbound.request import MessageType, SendRequest
from postroom.domain.actions import ForwardParameters, Parameters, ReplyParameters
from postroom.domain.errors import BadInput, Fatal
from postroom.mail.addresses import Address
from postroom.mail.composing import OutgoingMail, forward_of, reply_to
from postroom.mail.parsing import ParsedMail
from postroom.reading.mail import read_mail

LARGEST = 25 << 20
"""Gmail sends no more than 25 MB."""


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
    """The addresses of all accounts, to which nothing is sent."""
    is_attended: bool = False
    """A person ordered or approved this mail, and so its recipients."""


@dataclass(frozen=True, slots=True)
class SendRefused:
    """Why it is not sent, now or later."""

    reason: str


def compose(
    request: SendRequest, parameters: Parameters, original: Original, author: Author
) -> OutgoingMail | SendRefused:
    if original.mail.trouble:
        # Without its headers a mail loop cannot be ruled out.
        return SendRefused(f"not sent: the message could not be read ({original.mail.trouble}); answer it yourself")
    try:
        match request.message_type:
            case MessageType.REPLY:
                return _reply(request, parameters, original, author)
            case MessageType.FORWARD:
                return _forward(request, parameters, original, author)
            case _:
                assert_never(request.message_type)
    except BadInput as error:
        return SendRefused(error.message)


def _reply(
    request: SendRequest, parameters: Parameters, original: Original, author: Author
) -> OutgoingMail | SendRefused:
    if not isinstance(parameters, ReplyParameters):
        raise Fatal("The action is no reply.")
    if problem := loop_guard.unanswerable(original.mail, original.labels, author.own):
        return SendRefused(f"not answered: {problem}")
    letter = reply_to(
        original.mail,
        from_=Address(author.address),
        to=_addresses(request.to) or None,
        text=parameters.body if request.body_plain is None else request.body_plain,
        html=request.body_html,
        attachments=tuple(each.decoded() for each in request.attachments),
        extra_headers=_marks(request),
        auto_submitted="auto-replied",
    )
    letter = _as_asked(letter, request)
    if problem := loop_guard.misdirected_reply(letter, author.own):
        return SendRefused(f"not answered: {problem}")
    if not author.is_attended and (problem := loop_guard.diverted_reply(original.mail, letter)):
        return SendRefused(f"not answered: {problem}; approve it, or answer yourself")
    return letter


def _forward(
    request: SendRequest, parameters: Parameters, original: Original, author: Author
) -> OutgoingMail | SendRefused:
    if not isinstance(parameters, ForwardParameters):
        raise Fatal("The action is no forward.")
    if len(original.raw) > LARGEST:
        size = len(original.raw) / 1_000_000
        return SendRefused(f"not forwarded: the message has {size:.0f} MB, and Gmail sends no more than 25")
    letter = forward_of(
        original.mail,
        from_=Address(author.address),
        to=_addresses(request.to) or _addresses(parameters.to),
        text=(parameters.note or "") if request.body_plain is None else request.body_plain,
        html=request.body_html,
        attachments=tuple(each.decoded() for each in request.attachments),
        extra_headers=_marks(request),
        raw=original.raw,
    )
    letter = replace(letter, subject=request.subject or letter.subject, cc=_addresses(request.cc))
    if problem := loop_guard.looping_forward(original.mail, letter, author.own):
        return SendRefused(f"not forwarded: {problem}")
    return letter


def _as_asked(letter: OutgoingMail, request: SendRequest) -> OutgoingMail:
    return replace(
        letter,
        cc=_addresses(request.cc),
        subject=request.subject or letter.subject,
        references=tuple(request.references) or letter.references,
    )


def _marks(request: SendRequest) -> tuple[tuple[str, str], ...]:
    return ((loop_guard.ACTION_HEADER, request.action_id),)


def _addresses(texts: Collection[str]) -> tuple[Address, ...]:
    return tuple(Address(text) for text in texts)
