"""One tiny call of the configured model, on a person's request: does it answer, and what did that cost?

It is in the books before it is made, as every call is, and belongs to no message.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.findings import Check, Finding, Verdict, first_failure
from postroom.domain.money import Micros, format_dollars
from postroom.domain.tariffs import Tokens
from postroom.settings import ModelSettings
from postroom.triage import records
from postroom.triage.asking import Answer, CallFailed, Question, Tool
from postroom.triage.model import examine_model, open_model
from postroom.vault import Vault

if TYPE_CHECKING:  # of the models extra
    from postroom.triage.model_client import ModelClient

_MOST_OUTPUT = 50
_OVERHEAD_BYTES = 2_000
"""What a provider adds to a prompt of its own."""
_NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
_QUESTION = Question(
    "This is a test of the connection.", "Call the tool `ready`.", (Tool("ready", "Say that you are ready.", _NOTHING),)
)


async def try_model(settings: ModelSettings, vault: Vault, database: Database, clock: Clock) -> AsyncIterator[Finding]:
    """What can be seen without a call, and then, where nothing stands in its way, how one call went."""
    seen = examine_model(settings, vault)
    for finding in seen:
        yield finding
    if settings.provider is None or first_failure(seen):
        return
    small = settings.model_copy(update={"max_output_tokens": _MOST_OUTPUT})
    async with open_model(small, vault, clock) as model:
        if model is not None:
            yield await _asked(model, database, clock)


async def _asked(model: ModelClient, database: Database, clock: Clock) -> Finding:
    most = model.most_for(Tokens(_size(_QUESTION), _MOST_OUTPUT))
    now = clock.now()
    call_id = await database.write(lambda tx: records.begin_trial_call(tx, model.provider, model.name, most, now))
    outcome = await model.ask(_QUESTION)
    if isinstance(outcome, CallFailed):
        await database.write(lambda tx: records.fail_call(tx, call_id, outcome))
        return Finding(Check.MODEL, Verdict.FAILED, "model", f"A call failed: {outcome.error.message}")
    problem = None if outcome.calls else "the answer calls no tool"
    await database.write(lambda tx: records.end_call(tx, call_id, outcome, problem))
    return _judged(outcome, most)


def _judged(answer: Answer, most: Micros) -> Finding:
    cost = f"at most {format_dollars(most)}" if answer.cost is None else format_dollars(answer.cost)
    text = f"{answer.model} answered in {answer.latency_ms / 1_000:.1f} s for {cost}."
    if not answer.calls:
        remedy = "Choose a model that can call tools."
        return Finding(Check.MODEL, Verdict.FAILED, "model", f"{text} It did not call the tool it was offered.", remedy)
    if answer.cost is None:
        return Finding(Check.MODEL, Verdict.WARNING, "model", f"{text} It does not say how many tokens it used.")
    return Finding(Check.MODEL, Verdict.OK, "model", text)


def _size(question: Question) -> int:
    """The most tokens that the question can have: a token is a byte or more."""
    return _OVERHEAD_BYTES + len(json.dumps(asdict(question)).encode())
