"""The model that is configured: whether there is one, what its answers can cost, and a client for it.

The client is imported when a model is opened: its library takes longer to load than all the rest, and most commands,
and installations without a model, never ask.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.domain.metering import Meter
from postroom.domain.tariffs import tariff_for
from postroom.settings import MODEL_KEY_ENTRY, ModelSettings
from postroom.tls import trusted
from postroom.vault import Vault

if TYPE_CHECKING:
    from postroom.triage.model_client import ModelClient

VAULT_ENTRY = MODEL_KEY_ENTRY


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
