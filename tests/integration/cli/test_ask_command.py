"""`postroom ask` as a person meets it: an answer with quotes, or the messages and the reason why there is none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.file_archive import FileArchive
from postroom.sim.model.answers import ScriptedAnswer
from postroom.sim.model.server import ModelSim, running_model
from tests.support.commands import postroom
from tests.support.mail import ME, letter

pytestmark = pytest.mark.req("FD-4")

QUESTION = "When did I last visit Dr. Smith?"


def fill(home: Path) -> None:
    received = datetime(2026, 3, 13, 9, tzinfo=UTC)
    raw = letter("Your visit", "thank you for your visit on 12 March.\x1b[31m", sender="Dr. Smith <dr@smith.example>")
    with FileArchive(home / "archive").writer("a test") as writer:
        writer.store(ME, [IncomingMail(raw, Provenance.API, "18f0000000000001", received=received)])


def configure(monkeypatch: pytest.MonkeyPatch, sim: ModelSim) -> None:
    values = {
        "provider": "compatible",
        "name": "simulated-small",
        "base_url": sim.url,
        "api_key": sim.token,
        "input_price": "0.30",
        "output_price": "2.50",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"POSTROOM_MODEL__{name.upper()}", value)


async def test_an_answer_shows_each_sentence_with_its_quote(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home)
    sentences = [
        {
            "text": "You visited Dr. Smith on 12 March.",
            "message": "m1",
            "quote": "thank you for your visit on 12 March",
        },
        {"text": "It cost 90 dollars.", "message": "m1", "quote": "thank you for your visit on 12 March"},
    ]
    answer = ScriptedAnswer(arguments={"sentences": sentences}, input_tokens=40_000, output_tokens=1_000)
    async with running_model() as sim:
        configure(monkeypatch, sim)
        sim.responder.stage.queue.extend([answer.model_copy(update={"input_tokens": 1_000})] * 2)
        said = await postroom("ask", QUESTION)
        assert said.code == 0, said.stderr
        assert "You visited Dr. Smith on 12 March.\n  “thank you for your visit on 12 March”\n" in said.stdout
        assert "18f0000000000001  Dr. Smith <dr@smith.example>  Your visit" in said.stdout
        assert "1 sentence was left out" in said.stdout
        assert "90 dollars" not in said.stdout
        as_json = (await postroom("ask", QUESTION, "--account", ME, "--json")).json
        assert (as_json["outcome"], as_json["sentences"][0]["key"]) == ("answered", "18f0000000000001")
        sim.responder.stage.queue.append(ScriptedAnswer(arguments={"sentences": []}))
        nothing = await postroom("ask", QUESTION)
        assert (nothing.code, "No answer found in these messages." in nothing.stdout) == (0, True)
        assert "Your visit" in nothing.stdout


async def test_without_a_model_the_messages_are_shown_and_the_reason(home: Path) -> None:
    assert (await postroom("ask", QUESTION)).stdout == "No mail matches the words of the question.\n"
    fill(home)
    said = await postroom("ask", QUESTION)
    assert said.code == 1
    assert "No model is set up" in said.stderr
    assert "18f0000000000001  Dr. Smith <dr@smith.example>  Your visit" in said.stdout
    as_json = await postroom("ask", QUESTION, "--source", "--json")
    assert (as_json.code, as_json.json["outcome"]) == (1, "not_asked")
    assert as_json.json["source"] == {"mailboxes": [], "taken_in": 0, "keys": [], "under_way": [], "problems": []}
    assert "There is no mailbox to search" in (await postroom("ask", QUESTION, "--source")).stdout


async def test_what_cannot_be_asked_is_refused_by_its_name(home: Path) -> None:
    fill(home)
    for arguments, why in (
        (["Who was it?"], "question: has no word to search for"),
        ([QUESTION, "--account", "you@example.org"], "--account: no mail of you@example.org is in the archive"),
        (["x" * 501], "question"),
    ):
        said = await postroom("ask", *arguments)
        assert said.code == 2, said.stdout
        assert why in said.stderr
