"""The model that is configured: whether it can be asked, what its answers can cost, and a client for it.

The client is imported when a model is opened: its library takes longer to load than all the rest, and most commands,
and installations without a model, never ask.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.extras import Extra, ExtraMissing, is_installed, require
from postroom.domain.findings import Check, Finding, Verdict, first_failure
from postroom.domain.metering import Meter
from postroom.domain.tariffs import tariff_for
from postroom.settings import MODEL_KEY_ENTRY, ModelSettings
from postroom.tls import trusted
from postroom.vault import Vault

if TYPE_CHECKING:
    from postroom.triage.model_client import ModelClient

VAULT_ENTRY = MODEL_KEY_ENTRY
_ASKING = "Asking a model"


def meter_for(settings: ModelSettings) -> Meter:
    """What questions to the configured model can cost; one that knows no price lets nothing be spent."""
    tariff = tariff_for(settings.provider, settings.name, settings.input_price, settings.output_price)
    return Meter(tariff, settings.max_output_tokens)


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
    from postroom.triage.model_client import ModelClient, model_of

    async with httpx2.AsyncClient(trust_env=False, verify=trusted(), timeout=settings.timeout_s) as http:
        yield ModelClient(model_of(settings, api_key(settings, vault), http), settings, tariff, clock)


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
        return [_found(Verdict.OK, "No model is configured; rules decide alone.")]
    name = f"{settings.name} ({settings.provider})"
    if not is_installed(Extra.MODELS):
        return [_found(Verdict.FAILED, f"{name} cannot be asked. {ExtraMissing(Extra.MODELS, _ASKING).message}")]
    return [_found(Verdict.OK, f"{name} is configured."), _judge_key(settings, vault), _judge_price(settings)]


def _judge_key(settings: ModelSettings, vault: Vault) -> Finding:
    try:
        key = api_key(settings, vault)
    except PostroomError as error:
        return _found(Verdict.FAILED, f"The key of the model cannot be read. {error.message}")
    if key is not None:
        return _found(Verdict.OK, "The model has a key.")
    if settings.provider == "compatible":
        return _found(Verdict.OK, f"No key is set; {settings.base_url} may not want one.")
    remedy = "Store it with `postroom account model-key`, or set POSTROOM_MODEL__API_KEY, and start Postroom again."
    return _found(Verdict.FAILED, f"{settings.provider} needs a key, and none is set.", remedy)


def _judge_price(settings: ModelSettings) -> Finding:
    tariff = meter_for(settings).tariff
    if tariff is not None:
        return _found(Verdict.OK, f"Its price is known: {tariff.describe()}.")
    remedy = "Set model.input_price and model.output_price, and start Postroom again."
    return _found(Verdict.FAILED, f"The price of {settings.name} is not known, so it is not asked.", remedy)


def _found(verdict: Verdict, message: str, remedy: str = "") -> Finding:
    return Finding(Check.MODEL, verdict, "model", message, remedy)
