"""The digest as a pure thing: which days it is about, and what it says of counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from postroom.app.digest.content import (
    DONE,
    ORIGIN_NAMES,
    TIER_NAMES,
    ActionCount,
    DigestCounts,
    DigestKind,
    DigestPeriod,
    NamedCount,
    digest_mail,
    digest_subject,
    digest_text,
)
from postroom.domain.actions import ActionType, Origin
from postroom.domain.terms import Tier
from postroom.mail.composing import REPORT_HEADER
from postroom.mail.parsing import parse_mail

pytestmark = pytest.mark.req("UX-3")

ZAGREB = ZoneInfo("Europe/Zagreb")
MONDAY = date(2026, 11, 16)
COUNTS = DigestCounts(
    period=DigestPeriod(DigestKind.DAY, MONDAY, ZAGREB),
    tiers=((Tier.HIGH_PRIORITY, 2), (Tier.INTERACTIVE, 0), (Tier.DEFAULT, 1_240)),
    categories=(NamedCount("", 1_200), NamedCount("finance", 42)),
    senders=(NamedCount("shop@example.com\r\nBcc: x@evil.example", 9),),
    recovered=1,
    done=(
        ActionCount(Origin.MODEL, ActionType.ARCHIVE, 20),
        ActionCount(Origin.RULE, ActionType.APPLY_LABEL, 5),
        ActionCount(Origin.MODEL, ActionType.AUTO_REPLY, 1),
    ),
    failed=1,
    needs_approval=3,
    needs_review=1,
    model_calls=40,
    spent=123_456,
)
TEXT = """\
Monday, 16 November 2026

1,242 messages received
  High priority       2
  Default         1,240

By category
  Other mail   1,200
  Finance         42

Top senders
  shop@example.com  Bcc: x@evil.example       9

1 older message recovered

26 actions done
  Rules: 5 labelled
  Model: 20 archived, 1 replied to
  1 action failed

3 actions need approval
1 message needs review

40 model calls, $0.12 spent

More: https://post.example/digest?period=day&day=2026-11-16
"""


def test_a_day_and_a_week_begin_at_midnight_of_the_owner_whatever_the_clock_does() -> None:
    now = datetime(2026, 10, 25, 23, 30, tzinfo=UTC)  # Monday already in Zagreb, after the clock went back
    today = DigestPeriod.current(DigestKind.DAY, now, ZAGREB)
    assert (today.first, today.last) == (date(2026, 10, 26), date(2026, 10, 26))
    yesterday = today.before()
    assert yesterday.until - yesterday.since == timedelta(hours=25)
    assert yesterday.after() == today
    week = DigestPeriod.current(DigestKind.WEEK, now, ZAGREB).before()
    assert (week.first, week.last, week.title) == (date(2026, 10, 19), date(2026, 10, 25), "19 to 25 October 2026")
    assert DigestPeriod.holding(DigestKind.WEEK, date(2026, 1, 1), ZAGREB).title == "29 December 2025 to 4 January 2026"
    assert DigestPeriod.holding(DigestKind.WEEK, date(2026, 10, 1), ZAGREB).title == "28 September to 4 October 2026"


def test_it_says_the_counts_and_nothing_else() -> None:
    assert digest_text(COUNTS, "https://post.example") == TEXT
    assert digest_subject(COUNTS) == (
        "Postroom digest: 1,242 messages, 4 need your attention (Monday, 16 November 2026)"
    )


def test_a_quiet_day_is_said_in_a_few_lines() -> None:
    quiet = replace(COUNTS, tiers=((Tier.DEFAULT, 0),), categories=(), senders=(), recovered=0, done=(), failed=0)
    quiet = replace(quiet, needs_approval=0, needs_review=0, model_calls=0, spent=0)
    said = ["Monday, 16 November 2026", "0 messages received", "No action taken", "Nothing needs approval or review"]
    assert digest_text(quiet, None).splitlines()[::2] == [*said, "0 model calls, $0.00 spent"]
    assert digest_subject(quiet) == "Postroom digest: 0 messages (Monday, 16 November 2026)"


def test_the_letter_goes_from_the_owner_to_the_owner_and_is_marked_as_automatic() -> None:
    letter = parse_mail(digest_mail(COUNTS, "me@example.org", "day-2026-11-16", None).to_bytes())
    assert [each.address for each in (*letter.from_, *letter.to)] == ["me@example.org", "me@example.org"]
    assert (letter.cc, letter.bcc) == ((), ())
    assert letter.auto_submitted == "auto-generated"
    assert letter.headers.get(REPORT_HEADER) == "day-2026-11-16"


def test_an_undo_says_what_was_taken_back() -> None:
    taken_back = (
        ActionCount(Origin.UNDO, ActionType.APPLY_LABEL, 2),
        ActionCount(Origin.UNDO, ActionType.ARCHIVE, 1),
        ActionCount(Origin.UNDO, ActionType.UNSUBSCRIBE, 1),
    )
    said = digest_text(replace(COUNTS, done=taken_back), None)
    assert "Undo: 2 label taken back, 1 moved back to the inbox, 1 undone: unsubscribed from\n" in said


def test_everything_that_can_be_counted_has_a_name() -> None:
    assert set(DONE) == set(ActionType)
    assert set(ORIGIN_NAMES) == set(Origin)
    assert set(TIER_NAMES) == set(Tier)
