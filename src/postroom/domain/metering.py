"""The most that asking a model about a message can cost, known before it is asked: what a reservation rests on.

The bounds of a prompt stand here and nowhere else. A tokenizer that works on bytes never makes more tokens than there
are bytes, so the number of bytes is a bound for every model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from postroom.domain.money import Micros
from postroom.domain.tariffs import Tariff, Tokens

MOST_INSTRUCTION_BYTES = 3_000
"""Instructions, the question asked again, and what a provider adds of its own."""
MOST_TOOL_BYTES = 9_000
"""The tools by which the model answers, with the labels and addresses it may choose from."""
MOST_GUIDANCE_BYTES = 4_000
"""Directions and rules in the owner's words."""
MOST_LABEL_BYTES = 1_500
"""What the owner says about labels."""
MOST_THREAD_BYTES = 4_000
"""Earlier messages of the conversation."""
MOST_HEADER_BYTES = 3_000
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
_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\x7f\x85\u2028\u2029"}
"""JSON itself lets these stand as they are; the last three are line breaks too."""


def as_data(value: object) -> str:
    """JSON in which no mail can end its own fence: neither a line break nor a pointed bracket stands for itself."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPED)


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
        """For one call about mail with this text."""
        if self.tariff is None:
            return None
        return self.tariff.cost(Tokens(most_input_tokens(text), self.max_output_tokens))
