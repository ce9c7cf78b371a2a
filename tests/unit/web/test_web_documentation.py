"""What docs/web.md promises is there: its example is a good file, its checklist names real tests."""

from __future__ import annotations

import re
from pathlib import Path

from postroom.web.sources import EndpointMode, parse_sources

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "web.md").read_text("utf-8")


def test_the_example_of_sources_is_taken_as_it_stands() -> None:
    [example] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    [source] = parse_sources(example)
    assert {endpoint.mode for endpoint in source.endpoint} == set(EndpointMode)


def test_the_checklist_has_every_invariant_and_every_link_leads_to_a_test() -> None:
    assert re.findall(r"\| ☑ \| \*\*(INV-\d)\*\*", PAGE) == [f"INV-{n}" for n in range(1, 9)]
    links = re.findall(r"\[`(test_\w+)`\]\(\.\./([^)]+)\)", PAGE)
    assert len(links) >= 8
    for name, path in links:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), name
