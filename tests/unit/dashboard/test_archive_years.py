"""Mail by year: shards added up, and charts of all mailboxes."""

from __future__ import annotations

import pytest

from postroom.archive.certificates import RemovalResult
from postroom.archive.status import ShardInfo
from postroom.dashboard.archive.contents import (
    MailboxHolding,
    MailboxOrigin,
    YearHolding,
    by_year,
    mailbox_holding,
    year_panels,
)


def shard(year: int, messages: int, size: int | None = 1_000) -> ShardInfo:
    return ShardInfo(f"{year}.db", year, messages, 0, size, None)


def holding(account: str, *years: tuple[int, int]) -> MailboxHolding:
    shards = [shard(year, messages) for year, messages in years]
    return mailbox_holding(account, MailboxOrigin.CONNECTED, shards, {RemovalResult.REMOVED: 2})


@pytest.mark.req("UX-5")
def test_parts_of_a_year_add_up_and_a_missing_file_has_no_bytes() -> None:
    held = by_year([shard(2024, 5), shard(2024, 7, None), shard(2020, 1)])
    assert held == [YearHolding(2024, 12, 1_000), YearHolding(2020, 1, 1_000)]
    whole = holding("a@example.org", (2024, 5), (2020, 1))
    assert (whole.messages, whole.bytes, whole.removed_at_source) == (6, 2_000, 2)


@pytest.mark.req("UX-5")
def test_charts_hold_every_year_between_and_say_the_sums() -> None:
    messages, size = year_panels([holding("a@example.org", (2024, 5), (2020, 1)), holding("b@example.org", (2021, 9))])
    assert (messages.first, messages.last) == (2020, 2024)
    assert messages.chart.description == "Messages by year: b@example.org 9, a@example.org 6"
    assert size.chart.description == "Size by year: b@example.org 1.0 kB, a@example.org 2.0 kB"
    assert messages.chart.svg.count("<rect") == 3
    assert year_panels([]) == []


def test_small_mailboxes_share_a_colour_and_impossible_years_stretch_nothing() -> None:
    many = [holding(f"{number}@example.org", (2024, 100 - number)) for number in range(8)]
    messages, _ = year_panels([*many, holding("old@example.org", (102, 1))])
    assert "others 283" in messages.chart.description
    assert (messages.first, messages.last) == (1965, 2024)
