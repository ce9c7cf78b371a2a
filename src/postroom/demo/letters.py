"""The mail that arrives during the demonstration, and what the simulated model says about it. All of it is made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import make_msgid, parseaddr
from typing import Any

from postroom.sim.model.answers import Script, ScriptedAnswer

DOCTOR = "Dr. Novak's practice <office@clinic.example>"
_BULK = {"List-Unsubscribe": "<https://news.example/off>", "Precedence": "bulk"}
_LIST = {
    **_BULK,
    "Precedence": "list",
    "List-Id": "Choir <choir.lists.example>",
    "List-Post": "<mailto:c@lists.example>",
}


@dataclass(frozen=True)
class DemoLetter:
    sender: str
    subject: str
    text: str = "This letter is simulated.\n"
    headers: Mapping[str, str] = field(default_factory=dict)

    def raw(self, to: str) -> bytes:
        message = EmailMessage()
        domain = parseaddr(self.sender)[1].rpartition("@")[2]
        message["Authentication-Results"] = f"mx.google.com; dmarc=pass header.from={domain}"  # as Gmail adds it
        message["From"], message["To"], message["Subject"] = self.sender, to, self.subject
        message["Message-ID"] = make_msgid(domain="simulated.example")
        for name, value in self.headers.items():
            message[name] = value
        message.set_content(self.text)
        return message.as_bytes()


CONFIRMATION = DemoLetter(DOCTOR, "Your appointment tomorrow at 10:30 is confirmed", "Please come ten minutes early.\n")
MORNING = (
    *(DemoLetter("Morning News <news@news.example>", f"Newsletter {n} of 15", headers=_BULK) for n in range(1, 16)),
    *(DemoLetter("Choir <choir@lists.example>", f"Rehearsal, part {n}", headers=_LIST) for n in range(1, 4)),
    DemoLetter("Piano shop <hello@pianos.example>", "Your piano can be collected", "It is tuned. Come by any time.\n"),
    CONFIRMATION,
)
"""Eight in the morning. The one that matters comes last."""

BILL = DemoLetter(
    "City Power <billing@power.example>", "Your electricity bill for October", "The total is 61.20 EUR.\n"
)
OFFER = DemoLetter("Lamp World <offers@lamps.example>", "20 % off all lamps", headers=_BULK)
PRIZE = DemoLetter("Lottery <win@prizes.example>", "You have won a prize", "Send us your bank details.\n")
QUESTION = DemoLetter("Tom Hale <tom.hale@pianos.example>", "Question about your piano", "Is it still for sale?\n")
MEETING = DemoLetter("Ruth Birch <ruth@parish.example>", "Minutes of the meeting", "Nothing to do for you.\n")
FOR_RULES = (BILL, OFFER, PRIZE)
ARRIVALS = (*FOR_RULES, QUESTION, MEETING)
"""No rule decides the last two: they are for the model."""

RULES: tuple[Mapping[str, Any], ...] = (
    {
        "name": "Bills are filed",
        "condition": {"sender_domain": "power.example", "subject_contains": ["bill"]},
        "actions": ["apply_label=Bills"],
    },
    {"name": "Offers leave the inbox", "condition": {"sender_domain": "lamps.example"}, "actions": ["archive"]},
    {"name": "Prizes go to the trash", "condition": {"subject_contains": ["you have won"]}, "actions": ["trash"]},
)
"""The last one destroys, so a person is asked."""


def scripts() -> list[Script]:
    """What the simulated model decides. It is not sure about the minutes, so a person is asked."""
    return [
        _answers(QUESTION, "star", 0.93, "Simulated: a person asks something and waits for an answer."),
        _answers(MEETING, "archive", 0.55, "Simulated: it may be only for information."),
    ]


def _answers(letter: DemoLetter, tool: str, confidence: float, reason: str) -> Script:
    said = {"confidence": confidence, "reason": reason, "needs_approval": False}
    return Script(pattern=letter.subject, answer=ScriptedAnswer(tool=tool, arguments=said))
