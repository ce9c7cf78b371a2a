"""What the bot says. Of a mail only sender and subject, as inert text: no mention, link or mark-up in it does anything.

Words of strangers stand in code spans, where Discord reads nothing; pings are switched off for the whole message.
"""

from __future__ import annotations

import base64
import re
import unicodedata
import uuid
from typing import Any

from postroom.actions.approvals import Question, Verdict, standing
from postroom.actions.wording import deed

Json = dict[str, Any]

MOST_SAID = 2_000
_MOST_OF_A_FIELD = 150
_MOST_REASONS = 5
_SUPPRESS_EMBEDS = 1 << 2
_PREFIX = "postroom"
_CUSTOM_ID = re.compile(
    rf"{_PREFIX}:(approve|reject):([0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}})"
)
_SPACE = re.compile(r"\s+")


def asking(question: Question) -> Json:
    """The question, with its two buttons."""
    return _message(question, "needs your approval", [_buttons(question.action.id)])


def answered(question: Question) -> Json:
    """The same once it is answered or over: no button is left."""
    return _message(question, inert(standing(question.action)), [])


def nonce_of(action_id: str) -> str:
    """Of 22 characters; Discord takes 25."""
    return base64.urlsafe_b64encode(uuid.UUID(action_id).bytes).rstrip(b"=").decode("ascii")


def custom_id(verdict: Verdict, action_id: str) -> str:
    return f"{_PREFIX}:{verdict}:{action_id}"


def parse_custom_id(text: object) -> tuple[Verdict, str] | None:
    """What a button stands for; None for one that is not ours."""
    found = _CUSTOM_ID.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else (Verdict(found[1]), found[2])


def inert(text: str | None, most: int = _MOST_OF_A_FIELD) -> str:
    """Anybody's words in a code span, on one line, cut; nothing in them can end the span."""
    whole = _SPACE.sub(" ", text or "").strip()
    plain = "".join(char for char in whole if char == " " or not unicodedata.category(char).startswith(("C", "Z")))
    plain = plain.replace("`", "\N{MODIFIER LETTER GRAVE ACCENT}")
    if len(plain) > most:
        plain = plain[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return f"`{plain}`" if plain else "(none)"


def _message(question: Question, state: str, components: list[Json]) -> Json:
    action = question.action
    lines = [
        f"**Postroom**: {state}",
        f"From: {inert(question.sender)}",
        f"Subject: {inert(question.subject)}",
        f"Would: {inert(deed(action))}",
        *([f"The answer goes to: {inert(question.answers_go_to)}"] if question.answers_go_to else []),
        f"Wanted by: {inert(action.wanted_by)}",
        *(f"Because: {inert(reason)}" for reason in action.reasons[:_MOST_REASONS]),
        f"`postroom approvals show {action.id}`",
    ]
    return {
        "content": "\n".join(lines)[:MOST_SAID],
        "components": components,
        "allowed_mentions": {"parse": []},
        "flags": _SUPPRESS_EMBEDS,
    }


def _buttons(action_id: str) -> Json:
    approve = {"type": 2, "style": 3, "label": "Approve", "custom_id": custom_id(Verdict.APPROVE, action_id)}
    reject = {"type": 2, "style": 4, "label": "Reject", "custom_id": custom_id(Verdict.REJECT, action_id)}
    return {"type": 1, "components": [approve, reject]}
