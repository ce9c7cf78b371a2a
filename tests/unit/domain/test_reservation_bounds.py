"""Prices, and the bounds that reservations rest on."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.model_costs import (
    MOST_GUIDANCE_BYTES,
    MOST_HEADER_BYTES,
    MOST_INSTRUCTION_BYTES,
    MOST_LABEL_BYTES,
    MOST_REQUEST_BYTES,
    MOST_THREAD_BYTES,
    MOST_TOOL_BYTES,
    PROVIDER_ALLOWANCE,
    CostMeter,
    FixedTariff,
    PublishedTariff,
    TokenCounts,
    as_data,
    cut_to_bytes,
    tariff_for,
)
from postroom.triage.choices import MOST_ADDRESS_BYTES, MOST_LABEL_CHOICES_BYTES, ToolOffer, bounded
from postroom.triage.prompt import INSTRUCTIONS, Briefing, EarlierMail, MailToJudge, question_about
from postroom.triage.questions import ModelQuestion

RECEIVED = datetime(2026, 1, 1, tzinfo=UTC)
steady = settings(deadline=None, derandomize=True, max_examples=150)
any_text = st.text(max_size=3_000) | st.text(alphabet='<>&\\"\n\x00\x85\u2028é漢😀', max_size=3_000)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.decimals("0", "1000", places=4))
def test_a_cost_is_exact_and_never_rounded_down(tokens_in: int, tokens_out: int, price: Decimal) -> None:
    exact = tokens_in * price + tokens_out * price
    assert exact <= FixedTariff(price, price).cost(TokenCounts(tokens_in, tokens_out)) < exact + 1


@pytest.mark.req("BF-9")
def test_published_prices_are_those_of_the_price_list() -> None:
    tariff = tariff_for("anthropic", "claude-haiku-4-5")
    assert tariff is not None
    assert tariff.cost(TokenCounts(1_000_000, 0)) == 1_000_000
    assert tariff.cost(TokenCounts(0, 1_000_000)) == 5_000_000
    assert tariff.cost(TokenCounts(1_000_000, 0, cache_read=1_000_000)) < 1_000_000
    assert "$1 in, $5 out" in tariff.describe()


@pytest.mark.req("BF-9")
@pytest.mark.parametrize(
    ("provider", "model"), [(None, None), ("openai", "no-such-model"), ("compatible", "x"), ("openai", None)]
)
def test_what_has_no_price_has_no_tariff_and_lets_nothing_be_spent(provider: str | None, model: str | None) -> None:
    assert tariff_for(provider, model) is None
    assert CostMeter(None, 100).most(1_000) is None
    assert CostMeter(None, 100).dearest is None


def test_a_price_of_ones_own_wins_over_the_published_one() -> None:
    tariff = tariff_for("anthropic", "claude-haiku-4-5", Decimal("2"), Decimal("3"))
    assert tariff is not None
    assert tariff.cost(TokenCounts(10, 10)) == 50


@steady
@given(any_text)
def test_data_cannot_end_its_fence_and_reads_back_as_it_was(text: str) -> None:
    encoded = as_data(text)
    assert not set("<>&") & set(encoded)
    assert len(encoded.splitlines()) == 1
    assert json.loads(encoded) == text


@steady
@given(any_text, st.integers(2, 400))
def test_a_cut_text_fits_and_is_a_beginning(text: str, most: int) -> None:
    piece = cut_to_bytes(text, most)
    assert len(as_data(piece).encode()) <= most
    assert text.startswith(piece)


def _briefing(text: str, lines: list[str], names: list[str]) -> Briefing:
    """As much of everything as anybody could put there, and more."""
    thread = tuple(EarlierMail(text, text, text * 5, RECEIVED, by_owner=bool(number % 2)) for number in range(20))
    labels = [f"{name}{number}" for name in names for number in range(50)]
    return Briefing(
        directions=tuple(lines * 20),
        rules=tuple(lines * 20),
        labels=tuple((name, text) for name in names * 20),
        thread=thread,
        offer=ToolOffer(
            labels=bounded(labels, MOST_LABEL_CHOICES_BYTES),
            on_message=frozenset([*labels, "TRASH", "STARRED"]),
            forward_to=bounded([f"a{number}@{'x' * 50}.example" for number in range(100)], MOST_ADDRESS_BYTES),
        ),
    )


@pytest.mark.req("BF-9", "JB-10")
@steady
@given(any_text, any_text, st.lists(any_text, max_size=30))
def test_no_prompt_is_longer_than_what_was_reserved_for_it(text: str, subject: str, names: list[str]) -> None:
    mail = MailToJudge(
        sender="a@b.example",
        sender_name=subject,
        subject=subject,
        text=text * 10,
        received_at=RECEIVED,
        headers={"To": [subject, text], "Cc": text, "Precedence": "bulk"},
        labels=tuple(names),
        attachments=tuple(names),
    )
    question = question_about(mail, _briefing(text, names, names), problem="reason: " + "x" * 600)
    assert _parts_fit(question)
    size = _bytes(question.instructions) + _bytes(question.content) + _tool_bytes(question)
    assert size <= question.size + 2_000, "the frame of a provider"
    assert question.size < MOST_REQUEST_BYTES
    assert question.content.count("<mail>") == question.content.count("</mail>") == 1
    assert question.content.count("<thread>") == question.content.count("</thread>") == 1
    data = question.content.partition("<mail>\n")[2].partition("\n</mail>")[0]
    assert json.loads(data)["from"] == "a@b.example"


def _parts_fit(question: ModelQuestion) -> bool:
    """Each part within its own bound, so that none lives on the room of another."""
    told = _bytes(question.instructions) - _bytes(INSTRUCTIONS)
    thread = question.content.partition("<mail>")[0]
    return (
        told <= MOST_GUIDANCE_BYTES + MOST_LABEL_BYTES
        and _bytes(thread) <= MOST_THREAD_BYTES
        and _tool_bytes(question) <= MOST_TOOL_BYTES
        and _bytes(INSTRUCTIONS) + 1_000 < MOST_INSTRUCTION_BYTES
    )


def _bytes(text: str) -> int:
    return len(text.encode())


def _tool_bytes(question: ModelQuestion) -> int:
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
        }
        for tool in question.tools
    ]
    return _bytes(json.dumps(tools, ensure_ascii=False))


def test_the_most_is_that_of_one_question_and_its_longest_answer() -> None:
    meter = CostMeter(FixedTariff(Decimal(1), Decimal(10)), 100)
    assert meter.most(5) == 5 + PROVIDER_ALLOWANCE + 1_000
    assert meter.dearest == MOST_REQUEST_BYTES + PROVIDER_ALLOWANCE + 1_000


@pytest.mark.req("BF-9")
def test_the_most_is_at_the_dearest_rate_for_input_which_is_writing_a_cache() -> None:
    tariff = PublishedTariff("anthropic", "claude-haiku-4-5")
    assert tariff.most(1_000_000, 0) > tariff.cost(TokenCounts(1_000_000, 0))


def test_every_tool_at_once_has_room_for_what_it_may_name() -> None:
    labels = bounded([f"Label with a name {number}" for number in range(500)], MOST_LABEL_CHOICES_BYTES)
    forward_to = bounded([f"person{number}@example.org" for number in range(500)], MOST_ADDRESS_BYTES)
    offer = ToolOffer(labels, frozenset([*labels, "TRASH", "STARRED"]), forward_to)
    size = _tool_bytes(ModelQuestion("", "", offer.tools()))
    assert len(offer.tools()) == 13
    assert MOST_TOOL_BYTES - 1_000 < size < MOST_TOOL_BYTES - 200, "room for the framing of a provider, and no waste"


def test_long_names_of_attachments_push_no_header_out() -> None:
    long = tuple(f"{number}{'x' * 400}.pdf" for number in range(30))
    mail = MailToJudge("a@b.example", None, "s" * 900, "", RECEIVED, {"list-id": "<dev.example>"}, long, long)
    shown = json.loads(question_about(mail, Briefing()).content.partition("<mail>\n")[2].partition("\n</mail>")[0])
    assert shown["list-id"] == "<dev.example>"
    assert len(as_data(shown)) <= MOST_HEADER_BYTES + 20
