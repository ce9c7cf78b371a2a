"""`docs/search.md` knows every operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.mail.query.grammar import CATEGORIES, OPERATORS

PAGE = (Path(__file__).parents[4] / "docs" / "search.md").read_text()


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_every_operator_is_documented(operator: str) -> None:
    assert f"`{operator}:" in PAGE


def test_every_category_is_documented() -> None:
    assert all(category in PAGE for category in CATEGORIES)
