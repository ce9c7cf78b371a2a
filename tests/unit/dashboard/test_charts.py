"""Charts: well-formed whatever they show, with everything also in words."""

from __future__ import annotations

import re

import defusedxml.ElementTree as ElementTree
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.dashboard.display.charts import ChartPart, Track, as_image, bars, lines_over_time, pie, sparkline

PARTS = st.lists(st.builds(ChartPart, st.text(), st.floats(0, 1e12), st.text()), max_size=6)
SVG = "{http://www.w3.org/2000/svg}"


@given(st.text(), PARTS)
def test_every_chart_can_be_drawn_and_read(title: str, parts: list[ChartPart]) -> None:
    for chart in (pie(title, parts), bars(title, parts), sparkline(title, parts)):
        drawn = ElementTree.fromstring(chart.svg)
        assert drawn.find(f"{SVG}title") is not None
        assert drawn.find(f"{SVG}desc") is not None
        assert not drawn.findall(f".//{SVG}script")


def test_a_pie_begins_at_the_top_and_goes_round_once() -> None:
    chart = pie("Mail", [ChartPart("a", 1, "1"), ChartPart("b", 3, "3")])
    assert "M80 80L80.0 10.0A70.0 70.0 0 0 1 150.0 80.0Z" in chart.svg
    assert "A70.0 70.0 0 1 1 80.0 10.0Z" in chart.svg
    assert chart.description == "Mail: a 1, b 3"


def test_one_part_alone_is_a_whole_circle_and_nothing_an_empty_one() -> None:
    assert '<circle class="s0"' in pie("Mail", [ChartPart("a", 5, "5"), ChartPart("b", 0, "0")]).svg
    assert '<circle class="empty"' in pie("Mail", []).svg
    assert pie("Mail", []).description == "Mail: nothing yet"


def test_as_an_image_the_words_are_its_alternative() -> None:
    assert 'alt="&lt;Mail&gt;: a 1"' in as_image(pie("<Mail>", [ChartPart("a", 1, "1")]))


@pytest.mark.parametrize("known", [0, 3, 7])
def test_a_moment_by_itself_is_wide_enough_to_be_seen_within_the_chart(known: int) -> None:
    values = [5.0 if place == known else None for place in range(8)]
    [path] = re.findall(r'<path class="l0" d="M([0-9. L]+)"', lines_over_time("Wait", [Track("a", values, "5")]).svg)
    (left, _), (right, _) = (map(float, point.split()) for point in path.split("L"))
    assert 0 <= left < right <= 480
    assert right - left > 30
