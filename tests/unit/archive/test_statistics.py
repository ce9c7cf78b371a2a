"""Counting what an archive holds: the pure part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.archive.statistics import (
    SIZES,
    Ranking,
    StatisticsBy,
    Tally,
    by_prefix,
    domain_of,
    ending_of,
    merged,
    packed,
    ranked,
    search_for,
    unpacked,
)
from postroom.mail.query import parse

TALLIES = st.builds(Tally, st.integers(1, 9), st.integers(0, 999), st.integers(0, 9))
COUNTS = st.dictionaries(st.text(max_size=5), TALLIES, max_size=8)
NOW = 1_700_000_000_000


@given(COUNTS, COUNTS)
def test_counts_of_two_shards_add_up_in_either_order(one: dict[str, Tally], two: dict[str, Tally]) -> None:
    both = merged([one, two])
    assert both == merged([two, one])
    for place in range(3):
        assert sum(tally[place] for tally in both.values()) == sum(
            tally[place] for part in (one, two) for tally in part.values()
        )


@given(COUNTS, st.integers(0, 8))
def test_a_ranking_survives_storage_and_has_the_largest(counts: dict[str, Tally], most: int) -> None:
    found = ranked(counts, most)
    assert unpacked(packed(found)) == found
    left = [tally.messages for value, tally in counts.items() if value not in found.counts]
    assert found.values == len(counts)
    assert len(found.counts) == min(most, len(counts))
    assert min((tally.messages for tally in found.counts.values()), default=9) >= max(left, default=0)


def test_addresses_fold_into_domains_and_names_into_types() -> None:
    senders = {"ann@example.org": Tally(2, 10, 1), "bob@example.org": Tally(3, 5, 0)}
    assert by_prefix(senders, domain_of) == {"example.org": Tally(5, 15, 1)}
    names = ["report.PDF", "archive.tar.gz", "README", ".bashrc", "odd.a b", "x.toolongending"]
    assert [ending_of(name) for name in names] == ["pdf", "gz", "", "", "", ""]


def test_every_row_has_a_search_that_the_search_language_accepts() -> None:
    values = {
        StatisticsBy.SENDER: "ann+x@example.org",
        StatisticsBy.DOMAIN: "example.org",
        StatisticsBy.YEAR: "2024",
        StatisticsBy.MONTH: "2024-12",
        StatisticsBy.LABEL: 'Bills "2024" OR all',
        StatisticsBy.TYPE: "pdf",
    }
    found = {by: search_for(by, value) for by, value in values.items()}
    assert found[StatisticsBy.MONTH] == "in:anywhere after:2024/12/01 before:2025/01/01"
    assert found[StatisticsBy.LABEL] == 'in:anywhere label:"Bills  2024  OR all"'
    sizes = [search_for(StatisticsBy.SIZE, name) for name, _, _ in SIZES]
    assert sizes[1] == "in:anywhere larger:10239 smaller:102400"
    for query in [*found.values(), *sizes]:
        assert query is not None
        parse(query, NOW, strict=True)
    assert search_for(StatisticsBy.HOUR, "09") is None
    assert search_for(StatisticsBy.SENDER, "") is None
    assert unpacked(packed(Ranking({}, 0))) == Ranking({}, 0)
