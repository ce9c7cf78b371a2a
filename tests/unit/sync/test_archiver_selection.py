"""What may be removed at the source, decided without any I/O."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.archive.certificates import Removal, RemovalAction
from postroom.archive.messages import ArchivedMessage, Provenance
from postroom.domain.errors import BadInput, NotAllowed
from postroom.settings import ArchiverSettings
from postroom.sync.removal import (
    KeepReason,
    RemovalGrounds,
    RemovalPolicy,
    is_removed,
    keep_reason,
    policy_of,
    require_enabled,
)

NOW = datetime(2026, 6, 1, tzinfo=UTC)
RECEIVED = datetime(2024, 3, 1, 12, tzinfo=UTC)
WATERMARK = int(datetime(2026, 5, 31, tzinfo=UTC).timestamp())
FROM_INBOX = Removal(RemovalAction.LABEL, "INBOX")
POLICY = RemovalPolicy(FROM_INBOX, frozenset({"STARRED", "IMPORTANT", "Family/Keep"}), NOW - timedelta(days=30))
GROUNDS = RemovalGrounds(WATERMARK)

MESSAGE = ArchivedMessage(
    account="me@example.org",
    key="18c2f0a1b2c3d4e5",
    shard="me@example.org/2024.db",
    row_id=1,
    date=RECEIVED,
    gmail_id="18c2f0a1b2c3d4e5",
    thread_id="18c2f0a1b2c3d4e5",
    message_id="<a@example.org>",
    sender="ann@example.org",
    subject="A letter",
    size=100,
    sha256="00" * 32,
    provenance=Provenance.API,
    has_attachment=False,
    labels=("INBOX", "UNREAD"),
    deleted_at_source=None,
)


@pytest.mark.req("SY-10")
def test_old_mail_of_the_inbox_that_came_from_the_api_may_be_removed() -> None:
    assert keep_reason(MESSAGE, POLICY, GROUNDS) is None


@pytest.mark.req("SY-10")
@pytest.mark.parametrize(
    ("message", "grounds", "reason"),
    [
        (replace(MESSAGE, gmail_id=None), GROUNDS, KeepReason.NOT_AT_SOURCE),
        (replace(MESSAGE, deleted_at_source=NOW), GROUNDS, KeepReason.GONE),
        (MESSAGE, RemovalGrounds(WATERMARK, removed_before={MESSAGE.key}), KeepReason.REMOVED_BEFORE),
        (replace(MESSAGE, labels=("SENT",)), GROUNDS, KeepReason.NOTHING_TO_REMOVE),
        (MESSAGE, RemovalGrounds(int(RECEIVED.timestamp())), KeepReason.ABOVE_WATERMARK),
        (MESSAGE, RemovalGrounds(0), KeepReason.ABOVE_WATERMARK),
        (MESSAGE, RemovalGrounds(WATERMARK, bad={MESSAGE.key}), KeepReason.BAD),
        (replace(MESSAGE, labels=("INBOX", "STARRED")), GROUNDS, KeepReason.LABEL),
        (replace(MESSAGE, labels=("INBOX", "family/keep")), GROUNDS, KeepReason.LABEL),
        (replace(MESSAGE, labels=("INBOX", "DRAFT")), GROUNDS, KeepReason.LABEL),
        (replace(MESSAGE, date=NOW - timedelta(days=30)), GROUNDS, KeepReason.YOUNG),
        (replace(MESSAGE, provenance=Provenance.TAKEOUT), GROUNDS, KeepReason.NOT_COMPARED),
        (replace(MESSAGE, provenance=Provenance.IMPORT), GROUNDS, KeepReason.NOT_COMPARED),
    ],
)
def test_every_reason_to_stay_is_named(message: ArchivedMessage, grounds: RemovalGrounds, reason: KeepReason) -> None:
    assert keep_reason(message, POLICY, grounds) is reason


def test_the_second_of_the_watermark_itself_is_not_below_it() -> None:
    at = int(RECEIVED.timestamp())
    assert keep_reason(MESSAGE, POLICY, RemovalGrounds(at)) is KeepReason.ABOVE_WATERMARK
    assert keep_reason(replace(MESSAGE, date=RECEIVED - timedelta(milliseconds=1)), POLICY, RemovalGrounds(at)) is None


messages = st.builds(
    lambda **some: replace(MESSAGE, **some),
    date=st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)).map(lambda naive: naive.replace(tzinfo=UTC)),  # noqa: DTZ001
    gmail_id=st.sampled_from([MESSAGE.key, None]),
    provenance=st.sampled_from(Provenance),
    labels=st.sets(st.sampled_from(["INBOX", "TRASH", "STARRED", "DRAFT", "Family/Keep", "SENT"])).map(tuple),
    deleted_at_source=st.sampled_from([None, NOW]),
)
grounds = st.builds(
    RemovalGrounds,
    st.integers(0, int(datetime(2031, 1, 1, tzinfo=UTC).timestamp())),
    st.sampled_from([frozenset(), frozenset({MESSAGE.key})]),
    st.sampled_from([frozenset(), frozenset({MESSAGE.key})]),
)
removals = st.sampled_from([FROM_INBOX, Removal(RemovalAction.TRASH), Removal(RemovalAction.DELETE)])


@pytest.mark.req("SY-10")
@given(messages, grounds, removals)
def test_whatever_may_be_removed_is_below_the_watermark_and_meets_every_condition(
    message: ArchivedMessage, grounds: RemovalGrounds, removal: Removal
) -> None:
    if keep_reason(message, replace(POLICY, removal=removal), grounds) is not None:
        return
    assert message.date.timestamp() < grounds.watermark
    assert message.date < POLICY.young_from
    assert message.gmail_id is not None
    assert message.gmail_id not in grounds.bad
    assert message.provenance is Provenance.API
    assert message.deleted_at_source is None
    assert not {"STARRED", "DRAFT", "Family/Keep"} & set(message.labels)
    assert not is_removed(removal, message.labels)


def test_the_archiver_is_off_until_somebody_turns_it_on() -> None:
    with pytest.raises(NotAllowed, match=r"archiver\.enabled"):
        require_enabled(ArchiverSettings())
    require_enabled(ArchiverSettings(), enabled_now=True)
    require_enabled(ArchiverSettings(enabled=True))


def test_nothing_is_removed_without_saying_what_removing_means() -> None:
    with pytest.raises(BadInput, match="action"):
        policy_of(ArchiverSettings(enabled=True), NOW)
    with pytest.raises(BadInput, match="label"):
        policy_of(ArchiverSettings(), NOW, action=RemovalAction.DELETE, label="INBOX")
    policy = policy_of(ArchiverSettings(action="trash", keep_labels=" A ,, B/c"), NOW)
    assert policy.removal == Removal(RemovalAction.TRASH)
    assert policy.keep_labels == {"A", "B/c"}
    assert (
        policy_of(ArchiverSettings(action="trash"), NOW, action=RemovalAction.LABEL, label="Old").removal.label == "Old"
    )
