"""The configured model: whether it can be asked, what its answers can cost, a client for it, and a test call.

The client is imported when a model is opened, because its library is slow to load. The test call is recorded like
any other and belongs to no message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from postroom.db import Database, Tx
from postroom.domain.checkups import Check, CheckVerdict, Finding, first_failure
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.extras import Extra, ExtraMissing, is_installed, require
from postroom.domain.model_costs import CostMeter, Tariff, tariff_for
from postroom.domain.money import Denied, Micros, NewCall, Reserved, format_dollars
from postroom.settings import MODEL_KEY_ENTRY, Derived, ModelSettings, SettingsSource
from postroom.tls import trusted
from postroom.triage import records
from postroom.triage.questions import CallBudget, CallFailed, ModelAnswer, ModelQuestion, ModelTool
from postroom.vault import Vault

if TYPE_CHECKING:
    from postroom.triage.model_client import ModelClient


VAULT_ENTRY = MODEL_KEY_ENTRY
_ASKING = "Asking a model"


def meter_for(settings: ModelSettings) -> CostMeter:
    """What questions to the configured model can cost; one that knows no price lets nothing be spent."""
    tariff = tariff_for(settings.provider, settings.name, settings.input_price, settings.output_price)
    return CostMeter(tariff, settings.max_output_tokens)


class CurrentMeter:
    """`meter_for` the model that is configured now."""

    def __init__(self, settings: SettingsSource) -> None:
        self._meter = Derived(lambda: settings.now.model, meter_for)

    @property
    def tariff(self) -> Tariff | None:
        return self._meter().tariff

    @property
    def dearest(self) -> Micros | None:
        return self._meter().dearest

    def most(self, request_bytes: int) -> Micros | None:
        return self._meter().most(request_bytes)


@asynccontextmanager
async def open_model(settings: ModelSettings, vault: Vault, clock: Clock) -> AsyncIterator[ModelClient | None]:
    """The configured model for as long as the block lasts; None where none is configured."""
    if settings.provider is None:
        yield None
        return
    require(Extra.MODELS, _ASKING)
    tariff = meter_for(settings).tariff
    if tariff is None:
        raise BadInput(
            "model",
            f"the price of {settings.name} is not known, and nothing is spent unmetered; "
            "set model.input_price and model.output_price",
        )
    from postroom.triage.chat_completions import ModelHttp
    from postroom.triage.model_client import ModelClient, model_of

    async with ModelHttp(trust_env=False, verify=trusted(), timeout=settings.timeout_s) as http:
        yield ModelClient(model_of(settings, api_key(settings, vault), http), http, settings, tariff, clock)


def api_key(settings: ModelSettings, vault: Vault) -> str | None:
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    kept = vault.get(VAULT_ENTRY)
    return None if kept is None else kept.decode()


def model_problem(settings: ModelSettings, vault: Vault) -> str | None:
    """What keeps the configured model from being asked, and what mends it; None if nothing does, or none is wanted."""
    failure = first_failure(examine_model(settings, vault))
    return None if failure is None else failure.text


def examine_model(settings: ModelSettings, vault: Vault) -> list[Finding]:
    """Whether the model is configured, installed, and has a key and a price. No call is made."""
    if settings.provider is None:
        return [_found(CheckVerdict.OK, "No model is configured; rules decide alone.")]
    name = settings.described
    if not is_installed(Extra.MODELS):
        return [_found(CheckVerdict.FAILED, f"{name} cannot be asked. {ExtraMissing(Extra.MODELS, _ASKING).message}")]
    return [_found(CheckVerdict.OK, f"{name} is configured."), _judge_key(settings, vault), _judge_price(settings)]


def _judge_key(settings: ModelSettings, vault: Vault) -> Finding:
    try:
        key = api_key(settings, vault)
    except PostroomError as error:
        return _found(CheckVerdict.FAILED, f"The key of the model cannot be read. {error.message}")
    if key is not None:
        return _found(CheckVerdict.OK, "The model has a key.")
    if settings.provider == "compatible":
        return _found(CheckVerdict.OK, f"No key is set; {settings.base_url} may not want one.")
    remedy = "Store it with `postroom account model-key`, or set POSTROOM_MODEL__API_KEY and restart Postroom."
    return _found(CheckVerdict.FAILED, f"{settings.provider_name} needs a key, and none is set.", remedy)


def _judge_price(settings: ModelSettings) -> Finding:
    tariff = meter_for(settings).tariff
    if tariff is not None:
        return _found(CheckVerdict.OK, f"Its price is known: {tariff.describe()}.")
    remedy = "Set model.input_price and model.output_price."
    return _found(CheckVerdict.FAILED, f"The price of {settings.name} is not known, so it is not asked.", remedy)


def _found(verdict: CheckVerdict, message: str, remedy: str = "") -> Finding:
    return Finding(Check.MODEL, verdict, "model", message, remedy)


_MOST_OUTPUT = 50
_NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
_QUESTION = ModelQuestion(
    "This is a test of the connection.",
    "Call the tool `ready`.",
    (ModelTool("ready", "Say that you are ready.", _NOTHING),),
)


async def try_model(
    settings: ModelSettings, vault: Vault, database: Database, clock: Clock, budget: CallBudget
) -> AsyncIterator[Finding]:
    """What can be seen without a call, and then, where nothing stands in its way, how one call went."""
    seen = examine_model(settings, vault)
    for finding in seen:
        yield finding
    if settings.provider is None or first_failure(seen):
        return
    small = settings.model_copy(update={"max_output_tokens": _MOST_OUTPUT})
    async with open_model(small, vault, clock) as model:
        if model is not None:
            yield await _asked(model, database, clock, budget)


async def _asked(model: ModelClient, database: Database, clock: Clock, budget: CallBudget) -> Finding:
    most, now = model.most_for(_QUESTION), clock.now()

    def begin(tx: Tx) -> Reserved | Denied:
        reserved = budget.reserve(tx, NewCall(most, now + model.answer_limit))
        if isinstance(reserved, Reserved):
            records.begin_call(tx, records.NewModelCall(reserved.call_id, model.provider, model.name, most), now)
        return reserved

    reserved = await database.write(begin)
    if isinstance(reserved, Denied):
        remedy = "Raise it with `postroom model ceiling`, or try again tomorrow."
        return _found(CheckVerdict.FAILED, f"No call was made: {reserved.reason}.", remedy)
    outcome = await model.ask(_QUESTION)

    def end(tx: Tx) -> None:
        if isinstance(outcome, CallFailed):
            records.fail_call(tx, reserved.call_id, outcome)
            budget.settle(tx, reserved.call_id, None if outcome.may_have_cost else Micros(0))
        else:
            records.end_call(tx, reserved.call_id, outcome, None if outcome.calls else "the answer calls no tool")
            budget.settle(tx, reserved.call_id, outcome.cost)

    await database.write(end)
    if isinstance(outcome, CallFailed):
        return _found(CheckVerdict.FAILED, f"A call failed: {outcome.error.message}")
    return _judged(outcome, most)


def _judged(answer: ModelAnswer, most: Micros) -> Finding:
    cost = f"at most {format_dollars(most)}" if answer.cost is None else format_dollars(answer.cost)
    text = f"{answer.model} answered in {answer.latency_ms / 1_000:.1f} s for {cost}."
    if not answer.calls:
        remedy = "Choose a model that can call tools."
        return Finding(
            Check.MODEL, CheckVerdict.FAILED, "model", f"{text} It did not call the tool it was offered.", remedy
        )
    if answer.cost is None:
        return Finding(Check.MODEL, CheckVerdict.WARNING, "model", f"{text} It does not say how many tokens it used.")
    return Finding(Check.MODEL, CheckVerdict.OK, "model", text)
