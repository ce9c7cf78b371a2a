"""A configured model in tests: the stand-in, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from postroom.domain.clock import Clock, SystemClock
from postroom.settings import ModelSettings
from postroom.triage.model import open_model
from postroom.triage.model_client import ModelClient
from postroom.triage.sim.server import ModelSim, running_model
from postroom.vault import Vault

INPUT_PRICE, OUTPUT_PRICE = Decimal("0.30"), Decimal("2.50")


def settings_for(sim: ModelSim, **changes: Any) -> ModelSettings:
    values: dict[str, Any] = {
        "provider": "compatible",
        "name": "simulated-small",
        "base_url": sim.url,
        "api_key": SecretStr(sim.token),
        "input_price": INPUT_PRICE,
        "output_price": OUTPUT_PRICE,
    }
    return ModelSettings(**(values | changes))


@asynccontextmanager
async def model_on(
    sim: ModelSim, folder: Path, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[ModelClient]:
    async with open_model(settings_for(sim, **changes), Vault(folder), clock or SystemClock()) as model:
        assert model is not None
        yield model


@asynccontextmanager
async def simulated_model(folder: Path, seed: int = 0, **changes: Any) -> AsyncIterator[tuple[ModelSim, ModelClient]]:
    async with running_model(seed) as sim, model_on(sim, folder, **changes) as model:
        yield sim, model
