"""The small shared types: ids, money, clocks, errors."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.clock import ManualClock, require_utc
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.domain.ids import new_id, parse_id
from postroom.domain.money import MICROS_PER_DOLLAR, Micros, format_dollars, from_cents, parse_dollars, to_cents


def test_ids_are_version_7_and_sort_in_the_order_in_which_they_were_made() -> None:
    ids = [new_id() for _ in range(10_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    made = uuid.UUID(ids[0])
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_a_forked_process_makes_other_ids_than_its_parent() -> None:
    """The part of an id that is random is drawn ahead."""
    program = (
        "import os\nfrom postroom.domain.ids import new_id\nnew_id()\nif (child := os.fork()) == 0:\n"
        "    print(new_id()[19:], flush=True)\n    os._exit(0)\nos.waitpid(child, 0)\nprint(new_id()[19:])"
    )
    made = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert len(made) == len(set(made)) == 2


def test_an_id_from_a_person_is_brought_to_its_canonical_form_or_refused() -> None:
    made = new_id()
    assert parse_id(made.upper().replace("-", ""), "job") == made
    with pytest.raises(BadInput, match="job: '42' is not an id"):
        parse_id("42", "job")


@given(st.integers(-(10**11), 10**11))
def test_cents_survive_being_written_and_read(cents: int) -> None:
    written = format_dollars(from_cents(cents))
    assert parse_dollars(written.replace(",", "").replace("-$", "-")) == from_cents(cents)


@given(st.integers(-(10**15), 10**15))
def test_people_read_money_in_dollars_and_cents(amount: int) -> None:
    assert re.fullmatch(r"less than \$0\.01|-?\$[\d,]+\.\d\d", format_dollars(Micros(amount)))


@given(st.integers(0, 10**12))
def test_cents_never_hide_a_fraction_of_a_cent(amount: int) -> None:
    cents = to_cents(Micros(amount))
    assert from_cents(cents) >= amount > from_cents(cents) - from_cents(1)


def test_dollars_are_read_exactly_and_shown_to_the_cent() -> None:
    assert parse_dollars("$1.50") == 1_500_000
    assert parse_dollars("0.0000001") == 1, "finer than a micro-dollar rounds up"
    assert format_dollars(Micros(1_234 * MICROS_PER_DOLLAR)) == "$1,234.00"
    assert format_dollars(Micros(-1_234_567)) == "-$1.23"
    assert format_dollars(Micros(1)) == "less than $0.01"
    assert format_dollars(Micros(0)) == "$0.00"


@pytest.mark.parametrize("text", ["", "ten", "NaN", "Infinity", "1,50"])
def test_what_is_not_an_amount_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refusal:
        parse_dollars(text, "cap")
    assert refusal.value.field == "cap"


def test_a_time_without_a_zone_is_refused_and_one_with_a_zone_becomes_utc() -> None:
    zagreb = timezone(timedelta(hours=1))
    assert require_utc(datetime(2026, 1, 1, 1, tzinfo=zagreb), "since") == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(BadInput, match=r"since: .* has no time zone"):
        require_utc(datetime(2026, 1, 1), "since")  # noqa: DTZ001 (that is the point)


async def test_a_manual_clock_moves_only_when_it_is_moved() -> None:
    clock = ManualClock()
    start = clock.now()
    await clock.sleep(2.5)
    assert (clock.now() - start, clock.monotonic()) == (timedelta(seconds=2.5), 2.5)


@pytest.mark.parametrize("kind", [PostroomError, Retryable, Fatal, NotAllowed])
def test_an_error_without_a_message_speaks_through_its_docstring(kind: type[PostroomError]) -> None:
    assert kind().message == kind.__doc__
    assert kind("disk is full").message == "disk is full"
