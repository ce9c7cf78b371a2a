"""Files that people bring are read in linear time, and whatever they hold, only our own errors come out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from postroom.dashboard.display.differences import MOST_ROWS, difference
from postroom.domain.errors import BadInput
from postroom.mail.address_books import MOST_COLUMNS, read_csv, read_vcards
from postroom.reading.structured import MOST_PARTS, load_json, load_toml, load_yaml
from postroom.triage.rules.files import RulesFileFormat, parse_text
from postroom.web.sources import LARGEST_FILE, parse_sources

pytestmark = pytest.mark.req("HW-2")
ROOT = Path(__file__).resolve().parents[3]
_VCARD_WORDS = ["BEGIN:VCARD\n", "END:VCARD\n", "FN:", "N:", "EMAIL;", "ORG:", "ENCODING=QUOTED-PRINTABLE", "CHARSET="]
_CSV_WORDS = ["email", "name", ",", ";", "\t", '"', "\n", "\r", "a@b.example", " ::: ", "\0"]
_MARKS = [*"{}[]:=\n.\\#'\"", "- ", "&a ", "*a", "<<: ", "rules", "source", "9" * 50]


def _made_of(words: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(words) | st.text(max_size=5), max_size=40).map("".join)


def test_no_shape_of_file_takes_more_than_twice_the_time_at_twice_the_size() -> None:
    """Threefold with slack; what takes next to nothing is not compared."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.reading_faults"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    times: dict[str, tuple[float, float]] = json.loads(done.stdout)
    assert {name: pair for name, pair in times.items() if pair[1] > 0.5 and pair[1] > 3.2 * pair[0]} == {}
    assert max(twice for _, twice in times.values()) < 3.0


@given(st.binary(max_size=500) | _made_of(_VCARD_WORDS).map(str.encode))
@example(b"BEGIN:VCARD\nFN;QUOTED-PRINTABLE;CHARSET=idna:=\n=\n=")
@example(b"\xff\xfeB\x00")
@settings(max_examples=80, deadline=None)
def test_any_vcard_is_read_or_refused(data: bytes) -> None:
    _read_or_refused(read_vcards, data)


@given(st.binary(max_size=500) | _made_of(_CSV_WORDS).map(str.encode))
@example(b"email\n" + b'"' + b"a" * 200_000)
@example(b"email\n\0")
@settings(max_examples=80, deadline=None)
def test_any_csv_is_read_or_refused(data: bytes) -> None:
    _read_or_refused(read_csv, data)


@given(st.text(max_size=500) | _made_of(_MARKS))
@example("a = " + "[" * 50_000)
@example("a = " + "9" * 5_000)
@example("a = {b = " * 2_000)
@example("a = 9999-99-99")
@example("source = 1e999999")
@settings(max_examples=80, deadline=None)
def test_any_file_of_sources_is_read_or_refused(text: str) -> None:
    _read_or_refused(parse_sources, text)


@pytest.mark.parametrize("format", list(RulesFileFormat))
@given(text=st.text(max_size=500) | _made_of(_MARKS))
@example(text="rules: " + "[" * 5_000)
@example(text='{"rules": ' * 50_000)
@example(text="rules: 1" + ":10" * 5_000 + ".5")
@example(text="rules: !!binary x")
@example(text="rules: !!timestamp x")
@example(text="rules: !!int ''")
@example(text="rules: !!float []")
@example(text="? [a]\n: b")
@example(text="rules: [{name: a, actions: [star], condition: &c {any: [*c]}}]")
@settings(max_examples=60, deadline=None)
def test_any_file_of_rules_is_read_or_refused(text: str, format: RulesFileFormat) -> None:
    _read_or_refused(lambda written: parse_text(written, format), text)


def _read_or_refused(read: Callable[[Any], object], data: str | bytes) -> None:
    with suppress(BadInput):
        read(data)


def test_a_few_aliases_cannot_stand_for_billions_of_values() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 50)]
    with pytest.raises(ValueError, match="aliases stand for more than"):
        load_yaml("\n".join(lines))
    merged = ["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 50)]
    with pytest.raises(ValueError, match="aliases stand for more than"):
        load_yaml("\n".join(merged))


def test_aliases_that_people_write_are_read() -> None:
    assert load_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


def test_keys_are_read_up_to_their_number_of_parts_and_prose_is_no_key() -> None:
    assert load_toml(".".join(["a"] * MOST_PARTS) + " = 1")
    for key in (".".join(["a"] * 100), ".".join(["'a'"] * 100), " . ".join(['"a"'] * 100)):
        with pytest.raises(ValueError, match="more than 32 parts"):
            load_toml(f"{key} = 1")
        with pytest.raises(ValueError, match="more than 32 parts"):
            load_toml(f"[{key}]")
    prose = 'text = """' + "One sentence. Another one, e.g. this. " * 50 + "." * 200 + '"""'
    assert load_toml(prose)["text"].startswith("One")


@pytest.mark.parametrize(("load", "start"), [(load_toml, "a = "), (load_yaml, "a: "), (load_json, '{"a": ')])
def test_what_is_nested_too_deep_is_refused(load: Callable[[str], object], start: str) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        load(start + "[" * 20_000)


def test_files_have_a_largest_size_and_a_table_a_largest_width() -> None:
    with pytest.raises(BadInput, match="the most is"):
        parse_sources("#" * (LARGEST_FILE + 1))
    with pytest.raises(BadInput, match="columns"):
        read_csv(b"email," * (MOST_COLUMNS + 1))


@given(
    st.lists(st.sampled_from(["a", "b", "", "c d"]), max_size=60),
    st.lists(st.sampled_from(["a", "b", "x"]), max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_a_difference_accounts_for_every_line_of_both_texts(old: list[str], new: list[str]) -> None:
    found = difference("\n".join(old), "\n".join(new))
    assert len(found.rows) <= MOST_ROWS
    same_old = len("\n".join(old).splitlines()) - found.removed
    assert same_old == len("\n".join(new).splitlines()) - found.added
