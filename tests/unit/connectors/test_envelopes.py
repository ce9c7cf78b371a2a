"""Whatever a message holds, it fits into an envelope that the Switchboard takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.connectors.priority import FALLBACK
from postroom.connectors.source_mail import envelope_of, from_mailbox, full_payload, metadata_payload
from postroom.contract.mail import ArchivedRef, HeaderLine, StoredRef
from postroom.domain.envelope import parse_envelope
from postroom.mailboxes.gmail.mailbox import remote
from postroom.mailboxes.gmail.resources import GmailMessage
from postroom.reading.mail import read_headers
from postroom.sim.gmail.generated import GeneratedMailbox

REF = ArchivedRef(key="18f0", sha256="a" * 64)
ME = "me@example.com"
LINES = st.lists(
    st.tuples(st.sampled_from([b"From", b"Subject", b"Content-Type", b"Content-Disposition", b"X"]), st.binary()),
    max_size=8,
).map(lambda pairs: b"\r\n".join(name + b": " + value for name, value in pairs))


def checked(message: GmailMessage) -> None:
    mail = from_mailbox(remote(message))
    if message.raw is not None:
        lines = [HeaderLine(name=name, value=value) for name, value in read_headers(message.raw)]
        mail = mail.stored_at(StoredRef(key=REF.key, sha256=REF.sha256, headers=lines))
    for payload in (metadata_payload(mail), full_payload(mail.found_at(REF))):
        envelope = envelope_of(mail, ME, FALLBACK, payload, None)
        assert parse_envelope(envelope.model_dump(mode="json")) == envelope
        envelope.model_dump_json().encode("utf-8")


@pytest.mark.req("PL-4")
@given(LINES, st.binary(max_size=200), st.integers(-(2**62), 2**62))
def test_any_bytes_fit_into_an_envelope(head: bytes, body: bytes, when: int) -> None:
    checked(GmailMessage("18f0", "", internal_date_ms=when, raw=head + b"\r\n\r\n" + body))


@given(st.lists(st.tuples(st.sampled_from(["From", "Subject", "subject"]), st.text()), max_size=5))
def test_any_headers_that_gmail_gives_fit_into_an_envelope(pairs: list[tuple[str, str]]) -> None:
    checked(GmailMessage("18f0", "18f1", headers=tuple(pairs)))


def test_a_whole_mailbox_fits_into_envelopes() -> None:
    box = GeneratedMailbox(messages=300, seed=11, email=ME)
    for index in range(box.count()):
        checked(GmailMessage("18f0", "18f1", internal_date_ms=box.internal_date(index), raw=box.raw(index)))
