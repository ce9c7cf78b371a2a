"""The pages about the code name only what exists, and the glossary only words in use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import words

ROOT = Path(__file__).parents[3]
GLOSSARY = ROOT / "docs" / "glossary.md"
_FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|toml|md|html))(?:::?\w+)?`")
_SYMBOL = re.compile(r"`((?:[\w-]+/)+[\w-]+\.py)::(\w+)`")


def _entries() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    return rows[1:]


def _texts() -> Iterator[str]:
    for pattern in ("src/**/*.py", "src/**/*.html", "docs/*.md", "*.md"):
        yield from (path.read_text("utf-8") for path in ROOT.glob(pattern) if path != GLOSSARY)


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    entries = [entry.lower() for entry in _entries()]
    assert len(entries) > 30
    assert entries == sorted(set(entries))


def test_every_word_of_the_glossary_is_used() -> None:
    used = re.sub(r"[\W_]+", " ", "\n".join(_texts())).lower()
    unused = [entry for entry in _entries() if re.sub(r"[\W_]+", " ", entry).lower() not in used]
    assert not unused


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "docs/README.md"])
def test_the_glossary_is_found_from(page: str) -> None:
    assert "glossary.md" in (ROOT / page).read_text("utf-8")


def _named_files(page: str) -> set[str]:
    return set(_FILE.findall((ROOT / page).read_text("utf-8")))


def _exists(name: str) -> bool:
    return any((ROOT / base / name).exists() for base in ("src/postroom", ".", "docs"))


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    named = _named_files(page)
    assert len(named) > 10
    assert not sorted(name for name in named if not _exists(name))


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_name_in_a_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    for file, name in _SYMBOL.findall(text):
        source = (ROOT / "src" / "postroom" / file).read_text("utf-8")
        assert re.search(rf"\b{name}\b", source), f"{file}::{name}"


def test_a_question_of_contributing_is_answered_in_at_most_two_files() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## How to add")[1].split("\n## ")[0]
    answers = re.split(r"^### ", section, flags=re.MULTILINE)[1:]
    assert len(answers) == 10
    for answer in answers:
        assert 1 <= len(set(_FILE.findall(answer))) <= 2, answer.splitlines()[0]


def test_a_walk_of_the_architecture_names_at_most_twelve_files() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    walks = re.split(r"^### ", text.split("## Five walks")[1].split("\n## ")[0], flags=re.MULTILINE)[1:]
    assert len(walks) == 5
    for walk in walks:
        assert 3 <= len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) <= 12, walk.splitlines()[0]


def test_a_banned_word_is_found_in_names_comments_and_over_line_breaks() -> None:
    text = 'def parked_mail():\n    """It could not\n    be had."""\n    self._Crew = BadWeather()  # whoever\n'
    found = [(each.line, each.found) for each in words.findings_in("x.py", text)]
    assert found == [(1, "parked"), (2, "could not be had"), (4, "Crew"), (4, "Weather"), (4, "whoever")]


def test_a_true_use_is_allowed_where_it_is_listed() -> None:
    assert not list(words.findings_in("x.py", "mail nobody@gone.example", ["nobody@gone.example"]))
    assert list(words.findings_in("x.py", "nobody and nobody@gone.example", ["nobody@gone.example"]))


def test_every_allowed_use_is_still_there() -> None:
    for use in words.ALLOWED:
        if use.path and use.text:
            assert use.text in (ROOT / use.path).read_text("utf-8"), use
