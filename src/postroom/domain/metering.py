"""The most that asking a model about a message can cost, known before it is asked: what a reservation rests on.

The bounds of a prompt stand here and nowhere else. A tokenizer that works on bytes never makes more tokens than there
are bytes, so the number of bytes is a bound for every model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from postroom.domain.money import Micros
from postroom.domain.tariffs import Tariff, Tokens

MOST_INSTRUCTION_BYTES = 6_000
"""Instructions, the question asked again, and what a provider adds of its own."""
MOST_TOOL_BYTES = 10_000
"""The tools by which the model answers, with the labels and addresses it may choose from."""
MOST_GUIDANCE_BYTES = 8_000
"""Directions and rules in the owner's words."""
MOST_LABEL_BYTES = 2_000
"""What the owner says about labels."""
MOST_THREAD_BYTES = 6_000
"""Earlier messages of the conversation."""
MOST_HEADER_BYTES = 4_000
"""Sender, recipients, subject and the names of attachments, as they stand in a prompt."""
MOST_TEXT_BYTES = 16_000
"""The text of the mail, as it stands in a prompt."""
MOST_BYTES_BESIDE_TEXT = (
    MOST_INSTRUCTION_BYTES
    + MOST_TOOL_BYTES
    + MOST_GUIDANCE_BYTES
    + MOST_LABEL_BYTES
    + MOST_THREAD_BYTES
    + MOST_HEADER_BYTES
)
MOST_CALLS = 2
"""An answer that cannot be used is asked for once more."""


def as_data(value: object) -> str:
    """JSON in which no mail can end its own fence: neither a line break nor a pointed bracket stands for itself."""
    encoded = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def cut(text: str, most_bytes: int) -> str:
    """As much of the text as fits into so many bytes once it is written as data."""
    text = text.encode("utf-8", "replace").decode()
    text = text[:most_bytes]
    while (size := len(as_data(text).encode())) > most_bytes:
        text = text[: min(len(text) - 1, len(text) * most_bytes // size)]
    return text


def most_input_tokens(text: str) -> int:
    """The most tokens that a prompt about mail with this text can have."""
    return MOST_BYTES_BESIDE_TEXT + len(as_data(cut(text, MOST_TEXT_BYTES)).encode())


@dataclass(frozen=True, slots=True)
class Meter:
    """Knows what asking the configured model can cost at most; None where nobody knows, and then nothing is spent."""

    tariff: Tariff | None
    max_output_tokens: int

    def most(self, text: str) -> Micros | None:
        """For all calls that one message may take."""
        one = self.most_of_a_call(text)
        return None if one is None else Micros(MOST_CALLS * one)

    def most_of_a_call(self, text: str) -> Micros | None:
        if self.tariff is None:
            return None
        return self.tariff.cost(Tokens(most_input_tokens(text), self.max_output_tokens))
