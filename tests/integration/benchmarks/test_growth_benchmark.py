"""The cost of a unit is compared between the smallest and the largest size, and drawn."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks import growth
from benchmarks.databases import Kind, stores
from benchmarks.growth import Cost

_COSTS = [
    Cost("search", 1_000_000, 1_200.0),
    Cost("search", 10_000, 1_000.0),
    Cost("import", 10_000, 300.0),
    Cost("import", 1_000_000, 600.0),
]


def test_growth_is_the_largest_size_over_the_smallest_whatever_their_order() -> None:
    search, imported = growth.judge(_COSTS)
    assert (search.measured, search.met) == (1.2, True)
    assert (imported.measured, imported.met) == (2.0, False)


def test_the_picture_has_a_line_and_a_name_for_everything() -> None:
    picture = ElementTree.fromstring(growth.chart(_COSTS))  # noqa: S314 (of our own making)
    space = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{space}polyline")) == 2
    assert {"search", "import", "10,000", "1,000,000", "1.3x"} <= {each.text for each in picture.iter(f"{space}text")}


def test_the_queue_has_a_cost_at_every_size() -> None:
    with stores() as places, places.fresh(Kind.SQLITE_FULL) as store:
        costs = list(growth.queue_costs(store, "SQLite", 50))
    assert [cost.size for cost in costs] == [50, 50]
    assert all(cost.microseconds > 0 for cost in costs)
