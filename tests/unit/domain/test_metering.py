"""Prices, and the bounds that reservations rest on."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.metering import (
    MOST_HEADER_BYTES,
    MOST_INSTRUCTION_BYTES,
    MOST_TEXT_BYTES,
    Meter,
    as_data,
    cut,
    most_input_tokens,
)
from postroom.domain.tariffs import FixedTariff, Tokens, tariff_for
from postroom.triage.decision import ANSWER_TOOL
from postroom.triage.prompt import MailToJudge, question_about

steady = settings(deadline=None, derandomize=True, max_examples=150)
any_text = st.text(max_size=3_000) | st.text(alphabet='<>&\\"\n\x00é漢😀', max_size=3_000)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.decimals("0", "1000", places=4))
def test_a_cost_is_exact_and_never_rounded_down(tokens_in: int, tokens_out: int, price: Decimal) -> None:
    exact = tokens_in * price + tokens_out * price
    assert exact <= FixedTariff(price, price).cost(Tokens(tokens_in, tokens_out)) < exact + 1


@pytest.mark.req("BF-9")
def test_published_prices_are_those_of_the_price_list() -> None:
    tariff = tariff_for("anthropic", "claude-haiku-4-5")
    assert tariff is not None
    assert tariff.cost(Tokens(1_000_000, 0)) == 1_000_000
    assert tariff.cost(Tokens(0, 1_000_000)) == 5_000_000
    assert tariff.cost(Tokens(1_000_000, 0, cache_read=1_000_000)) < 1_000_000
    assert "$1 in, $5 out" in tariff.describe()


@pytest.mark.req("BF-9")
@pytest.mark.parametrize(
    ("provider", "model"), [(None, None), ("openai", "no-such-model"), ("compatible", "x"), ("openai", None)]
)
def test_what_has_no_price_has_no_tariff_and_lets_nothing_be_spent(provider: str | None, model: str | None) -> None:
    assert tariff_for(provider, model) is None
    assert Meter(None, 100).most("hello") is None


def test_a_price_of_ones_own_wins_over_the_published_one() -> None:
    tariff = tariff_for("anthropic", "claude-haiku-4-5", Decimal("2"), Decimal("3"))
    assert tariff is not None
    assert tariff.cost(Tokens(10, 10)) == 50


@steady
@given(any_text)
def test_data_cannot_end_its_fence_and_reads_back_as_it_was(text: str) -> None:
    encoded = as_data(text)
    assert not set("<>&\n") & set(encoded)
    assert json.loads(encoded) == text


@steady
@given(any_text, st.integers(2, 400))
def test_a_cut_text_fits_and_is_a_beginning(text: str, most: int) -> None:
    piece = cut(text, most)
    assert len(as_data(piece).encode()) <= most
    assert text.startswith(piece)


@pytest.mark.req("BF-9")
@steady
@given(any_text, any_text, any_text, st.lists(any_text, max_size=30))
def test_no_prompt_is_longer_than_what_was_reserved_for_it(
    text: str, subject: str, name: str, files: list[str]
) -> None:
    mail = MailToJudge(
        sender="a@b.example",
        sender_name=name,
        subject=subject,
        text=text * 10,
        received_at=datetime(2026, 1, 1, tzinfo=UTC),
        headers={"To": [subject, name], "Cc": text, "Precedence": "bulk"},
        labels=tuple(files),
        attachments=tuple(files),
    )
    question = question_about(mail, problem="reason: " + "x" * 300)
    size = len(question.instructions.encode()) + len(question.content.encode()) + len(json.dumps(ANSWER_TOOL.schema))
    assert size < most_input_tokens(mail.text) <= MOST_INSTRUCTION_BYTES + MOST_HEADER_BYTES + MOST_TEXT_BYTES
    assert question.content.count("<mail>") == question.content.count("</mail>") == 1
    data = question.content.partition("<mail>\n")[2].partition("\n</mail>")[0]
    assert json.loads(data)["from"] == "a@b.example"


def test_the_most_covers_the_question_asked_again() -> None:
    meter = Meter(FixedTariff(Decimal(1), Decimal(10)), 100)
    assert meter.most("hello") == 2 * (most_input_tokens("hello") + 1_000)
