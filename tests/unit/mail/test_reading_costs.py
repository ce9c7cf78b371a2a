"""Reading any message is linear in time and bounded in memory, measured in processes of their own."""

from __future__ import annotations

import base64

import pytest

from postroom.mail.parsing import parse_mail
from tests.support.reading_faults import HOSTILE, Cost, cost_of

MIB = 1 << 20
LARGEST = 50 * MIB
SLACK = 3.0
"""Machines that test are slow and busy."""
BOUND_S = 2.0


def cost(kind: str, size: int) -> Cost:
    raw = HOSTILE[kind](size)[:size]
    parse_mail(b"Subject: x\n\nx")

    def read() -> None:
        mail = parse_mail(raw)
        assert isinstance(mail.best_text, str)
        assert mail.html is None or isinstance(mail.html_as_text, str)

    return cost_of(read)


@pytest.mark.req("HW-2")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_message_costs_time_and_memory_in_proportion_to_its_size(kind: str) -> None:
    once, twice = cost(kind, MIB // 4), cost(kind, MIB // 2)
    assert twice.cpu_s <= SLACK * BOUND_S
    assert twice.memory <= 4 * MIB + 50 * MIB
    assert twice.cpu_s <= 2 * SLACK * once.cpu_s + 0.3


@pytest.mark.chaos
@pytest.mark.req("HW-2")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_message_of_50_mb_costs_at_most_two_seconds_and_four_times_its_size(kind: str) -> None:
    large = cost(kind, LARGEST)
    assert large.cpu_s <= SLACK * BOUND_S
    assert large.memory <= 4 * LARGEST + 50 * MIB


@pytest.mark.req("HW-2")
def test_damaged_base64_of_32_mb_takes_no_more_than_a_copy_of_it() -> None:
    """It took 3 GB: each character that was left out became an object of its own."""
    raw = b"Content-Type: application/pdf\nContent-Transfer-Encoding: base64\n\n" + b"!A" * 16_000_001
    found = cost_of(lambda: parse_mail(raw))
    assert found.memory <= 2 * len(raw)
    assert found.cpu_s <= SLACK * BOUND_S


@pytest.mark.req("HW-1", "HW-2")
def test_a_number_of_five_thousand_digits_is_a_character_that_does_not_exist() -> None:
    mail = parse_mail(
        b"Content-Type: text/html\n\n<p>before &#" + b"9" * 5_000 + b"; after &#x" + b"0" * 99 + b"41;</p>"
    )
    assert mail.best_text == "before \N{REPLACEMENT CHARACTER} after A"


@pytest.mark.req("HW-2")
def test_text_beyond_the_limit_is_cut_at_a_line_and_said_so() -> None:
    line = "Grüße an alle, die lange Briefe schreiben.\n".encode()
    raw = b"Content-Type: text/plain; charset=utf-8\n\n" + line * 100_000
    mail = parse_mail(raw)
    assert mail.text is not None
    assert len(mail.text.encode()) <= 2 * MIB
    assert mail.text.endswith("schreiben.\n")
    assert mail.problems[-1] == "part 1: its text is longer than is read; the rest was left out"


@pytest.mark.req("HW-2")
@pytest.mark.parametrize("encoding", [b"base64", b"8bit"])
def test_a_cut_breaks_no_character(encoding: bytes) -> None:
    text = ("ü" * 2 * MIB).encode()
    body = base64.b64encode(text) if encoding == b"base64" else b"a" + text
    head = b"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: " + encoding + b"\n\n"
    mail = parse_mail(head + body)
    assert mail.text is not None
    assert set(mail.text) <= {"ü", "a"}
