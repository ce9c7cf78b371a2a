"""The stand-in's made-up answers are such as a real model might give: of the offered tools, usable, repeatable."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

from postroom.domain.model_costs import TokenCounts
from postroom.domain.money import Micros
from postroom.sim.model.answers import ChatRequest, ChatTool, arguments_text, invent
from postroom.triage.asking import QuotableMail, model_question, read_sentences
from postroom.triage.choices import ToolOffer, read_answer
from postroom.triage.prompt import Briefing, question_about
from postroom.triage.questions import ModelAnswer, ModelQuestion, ToolCall
from tests.support.injections import Injection

OFFER = ToolOffer(
    labels=("Receipts", "Travel"),
    on_message=frozenset({"INBOX", "UNREAD", "STARRED", "TRASH", "Travel"}),
    forward_to=("books@example.org",),
)
NOW = datetime(2026, 3, 1, tzinfo=UTC)
NEWSLETTER = {"List-Unsubscribe": "<https://x.example/off>"}


def request_for(question: ModelQuestion, choice: object = "required") -> ChatRequest:
    said = ({"role": "system", "content": question.instructions}, {"role": "user", "content": question.content})
    tools = tuple(ChatTool(tool.name, tool.schema) for tool in question.tools)
    return ChatRequest("m", said, tools, choice, None, 0)


def question(injection: Injection) -> ModelQuestion:
    return question_about(injection.mail(), Briefing(offer=OFFER))


def called(request: ChatRequest) -> str | None:
    """What it calls, once that is known to be usable."""
    made = invent(request, seed=1)
    assert made == invent(request, seed=1)
    if made.tool is None:
        return None
    call = ToolCall(made.tool, arguments_text(made))
    choice = read_answer(
        ModelAnswer((call,), "", "m", TokenCounts(1, 1), Micros(1), 1, False, is_simulated=True), OFFER
    )
    assert "Simulated" in choice.reason
    return made.tool


def test_newsletters_leave_the_inbox_bills_are_marked_and_letters_stay() -> None:
    def mostly(text: str, **more: dict[str, str]) -> set[str | None]:
        letters = [Injection("honest", f"{text} {number}", headers=more.get("headers", {})) for number in range(40)]
        return {tool for tool, _ in Counter(called(request_for(question(each))) for each in letters).most_common(2)}

    assert mostly("Our week in review", headers=NEWSLETTER) == {"archive", "mark_read"}
    assert mostly("Here is your invoice") == {"apply_label", "star"}
    assert mostly("Shall we have lunch?") == {"none"}


@pytest.mark.parametrize("tool", [tool.name for tool in OFFER.tools()])
def test_a_tool_that_is_asked_for_by_name_is_called_with_arguments_that_fit(tool: str) -> None:
    chosen = {"type": "function", "function": {"name": tool}}
    assert called(request_for(question(Injection("honest", "Hello")), chosen)) == tool


def test_where_no_tool_may_be_called_it_talks() -> None:
    assert called(request_for(question(Injection("honest", "Hello")), "none")) is None


def test_a_question_about_mail_is_answered_with_its_own_words() -> None:
    mails = [
        QuotableMail(name, NOW, "ann@example.org", f"Plan {name}", text)
        for name, text in (("a", "We meet at <ten> in room 5. " * 30), ("b", ""), ("c", "A third letter."))
    ]
    asked = model_question("When do we meet?", mails, NOW)
    made = invent(request_for(asked), seed=1)
    call = ToolCall(str(made.tool), arguments_text(made))
    answer = ModelAnswer((call,), "", "m", TokenCounts(1, 1), Micros(1), 1, False, is_simulated=True)
    checked = read_sentences(answer, "When do we meet?", mails)
    assert checked.dropped == 0
    assert [each.mail.source for each in checked.sentences] == ["a", "b"]
    assert checked.sentences[0].quote.startswith("We meet at <ten> in room 5.")
    assert all("Simulated" in each.text for each in checked.sentences)
    nothing = invent(request_for(model_question("When do we meet?", [], NOW)), seed=1)
    assert nothing.arguments == {"sentences": []}
