"""What the bot says: nothing of a stranger's words does anything, and nothing of the mail but sender and subject."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.actions.approvals import ApprovalQuestion, ApprovalVerdict
from postroom.actions.discord import notices
from postroom.actions.discord.interactions import SignatureVerifier
from postroom.actions.lifecycle import Action
from postroom.actions.wording import letter_of
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.domain.ids import new_id
from postroom.sim.discord import SimChannel

pytestmark = pytest.mark.req("JB-16")
steady = settings(deadline=None, derandomize=True)
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
REPLY_TEXT = "the PIN is 4711"


def question(sender: str = "ann@x", subject: str = "Hi", **changes: Any) -> ApprovalQuestion:
    values: dict[str, Any] = dict.fromkeys(Action.__slots__) | {
        "id": new_id(),
        "account_id": new_id(),
        "gmail_id": "1",
        "position": 0,
        "origin": Origin.MODEL,
        "type": ActionType.AUTO_REPLY,
        "parameters": {"body": REPLY_TEXT},
        "status": ActionStatus.APPROVED_PENDING,
        "reasons": ("auto_reply is dangerous", "the model is not sure"),
        "wanted_by": "model small",
        "created_at": NOW,
        "updated_at": NOW,
    }
    return ApprovalQuestion(Action(**(values | changes)), "me@example.org", sender, subject, NOW)


@steady
@given(st.text(max_size=400), st.text(max_size=400))
def test_no_text_of_a_stranger_leaves_its_code_span(sender: str, subject: str) -> None:
    said = notices.asking(question(sender, subject))["content"]
    assert len(said) <= notices.MOST_SAID
    for name, line in zip(("From: ", "Subject: "), said.split("\n")[1:3], strict=True):
        text = line.removeprefix(name)
        assert text == "(none)" or (text[0] == text[-1] == "`" and "`" not in text[1:-1] and len(text) > 2)


def test_mentions_links_and_tricks_are_inert() -> None:
    hostile = "@everyone <@123> [click](https://evil.example) `code` **bold**\n# head\u202eexe\u200b"
    message = notices.asking(question(hostile, hostile))
    assert message["allowed_mentions"] == {"parse": []}
    assert message["flags"] & 4
    assert "\u202e" not in message["content"]
    assert "\n# head" not in message["content"]


def test_what_would_be_sent_is_said_and_bounded() -> None:
    asked = question(parameters={"body": f"{REPLY_TEXT} `@everyone` " + "x" * 5_000, "cc": ["boss@example.org"]})
    letter = letter_of(asked.action, ("Ann <ann@x>",), asked.subject)
    message = notices.asking(replace(asked, letter=letter, why="They ask for it."))
    assert len(message["content"]) <= notices.MOST_SAID
    for line in ("To: `Ann <ann@x>`", "Cc: `boss@example.org`", "Its subject: `Re: Hi`", "It says: `They ask for it.`"):
        assert line in message["content"]
    assert f"Text: `{REPLY_TEXT} \u02cb@everyone\u02cb xxx" in message["content"]
    assert "postroom approvals show" in message["content"]


def test_of_the_mail_itself_only_sender_and_subject_are_said() -> None:
    message = notices.asking(replace(question(), text=REPLY_TEXT))
    assert REPLY_TEXT not in message["content"]
    assert "reply to the sender (15 characters)" in message["content"]
    assert "the model is not sure" in message["content"]


def test_no_button_is_left_once_it_is_answered() -> None:
    done = question(status=ActionStatus.REJECTED, answered_by="discord ana (1)", answered_at=NOW)
    message = notices.answered(done)
    assert message["components"] == []
    assert "rejected by discord ana (1)" in message["content"]


def test_a_button_says_what_it_stands_for() -> None:
    action_id = new_id()
    text = notices.custom_id(ApprovalVerdict.REJECT, action_id)
    assert len(text) <= 100
    assert notices.parse_custom_id(text) == (ApprovalVerdict.REJECT, action_id)


@pytest.mark.parametrize(
    "text",
    [None, 7, "", "postroom:approve:1", "postroom:delete:01990000-0000-7000-8000-000000000000", "approve", "x" * 999],
)
def test_other_buttons_are_not_ours(text: object) -> None:
    assert notices.parse_custom_id(text) is None


@steady
@given(st.uuids())
def test_nonces_are_short_enough_and_differ(value: Any) -> None:
    assert len(notices.nonce_of(str(value))) <= 25


@pytest.mark.req("PL-7")
def test_only_a_fresh_signature_over_these_very_bytes_holds() -> None:
    board = SimChannel("1")
    verifier = SignatureVerifier(board.public_key)
    body, headers = board.signed({"type": 1}, int(NOW.timestamp()))
    signature, stamp = headers["X-Signature-Ed25519"], headers["X-Signature-Timestamp"]
    assert verifier.holds(signature, stamp, body, NOW)
    assert not verifier.holds(signature, stamp, body + b" ", NOW)
    assert not verifier.holds(signature, str(int(stamp) + 1), body, NOW)
    assert not verifier.holds(signature, stamp, body, NOW + timedelta(minutes=6))
    assert not verifier.holds(signature, stamp, body, NOW - timedelta(minutes=6))
    assert not verifier.holds("0" * 128, stamp, body, NOW)
    for nonsense in ("", "zz", signature[:-2], signature + "00", "é" * 128):
        assert not verifier.holds(nonsense, stamp, body, NOW)
    for nonsense in ("", "now", "-1", "9" * 400, "1e9", "٣"):
        assert not verifier.holds(signature, nonsense, body, NOW)
    other = Ed25519PrivateKey.generate().sign(stamp.encode() + body).hex()
    assert not verifier.holds(other, stamp, body, NOW)
