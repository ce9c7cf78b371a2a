"""Answers in our types: exact bytes, ids as text, and nothing guessed."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.errors import BadInput
from postroom.mailboxes.gmail import resources
from postroom.mailboxes.gmail.calls import segment
from postroom.mailboxes.gmail.mailbox import remote
from postroom.mailboxes.gmail.transport import TransportConfig


@given(st.binary(max_size=500), st.booleans())
@settings(deadline=None, derandomize=True)
def test_raw_bytes_come_back_exactly(raw: bytes, padded: bool) -> None:
    text = urlsafe_b64encode(raw).decode()
    assert resources.decoded(text if padded else text.rstrip("=")) == raw
    assert resources.encoded(raw) == text


@pytest.mark.parametrize("text", ["abc!", "ab c", "a", "é", "ab\ncd", "ab=cd"])
def test_what_is_not_base64url_is_an_error_and_never_skipped(text: str) -> None:
    with pytest.raises((binascii.Error, UnicodeEncodeError)):
        resources.decoded(text)


@given(st.text("AB01-_+/= \n.é", max_size=12))
@settings(deadline=None, derandomize=True)
def test_text_is_read_as_a_strict_reader_does(text: str) -> None:
    try:
        digits = text.encode("ascii").rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
        strictly = binascii.a2b_base64(digits + b"=" * (-len(digits) % 4), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        with pytest.raises(type(error)):
            resources.decoded(text)
    else:
        assert resources.decoded(text) == strictly


def test_only_an_empty_message_has_no_bytes() -> None:
    assert resources.raw_message({"id": "a", "raw": "", "sizeEstimate": 0}).raw == b""
    with pytest.raises(KeyError):
        resources.raw_message({"id": "a", "raw": "", "sizeEstimate": 512})


def test_history_ids_are_text_however_they_come() -> None:
    page = resources.history_page({"historyId": 123456789012345678901, "history": [{"id": 7}]})
    assert (page.history_id, page.records[0].id) == ("123456789012345678901", "7")


def test_a_history_page_may_lack_its_records() -> None:
    page = resources.history_page({"historyId": "5", "nextPageToken": "more"})
    assert (page.records, page.next_token) == ((), "more")


def test_a_date_beyond_the_calendar_is_no_error() -> None:
    message = resources.message({"id": "a", "internalDate": "9" * 18})
    assert remote(message).received is None
    assert message.internal_date_ms == int("9" * 18)


def test_mail_is_not_shown_when_a_message_is_printed() -> None:
    message = resources.message({"id": "a", "raw": "c2VjcmV0", "snippet": "secret"})
    assert "secret" not in repr(message)


def test_an_id_cannot_lead_elsewhere() -> None:
    assert segment("../drafts?x=1", "message_id") == "..%2Fdrafts%3Fx%3D1"
    for bad in ("", ".", ".."):
        with pytest.raises(BadInput, match="message_id"):
            segment(bad, "message_id")


@pytest.mark.req("PL-6")
@pytest.mark.parametrize("address", ["http://gmail.example", "ftp://127.0.0.1", "gmail.googleapis.com", "", "http://"])
def test_a_token_is_never_sent_to_an_unsafe_address(address: str) -> None:
    with pytest.raises(BadInput, match="api_base"):
        TransportConfig(api_base=address)


@pytest.mark.parametrize(
    "address", ["https://gmail.example", "http://127.0.0.1:8080", "http://localhost", "http://[::1]:1"]
)
def test_safe_addresses_are_taken(address: str) -> None:
    assert TransportConfig(api_base=address).api_base == address
