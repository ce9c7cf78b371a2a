"""A worker that judges mail, as a process to be killed: database address, model address, key, and a folder."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pydantic import SecretStr

from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.queue import JobQueue, Worker
from postroom.settings import ModelSettings, WorkerSettings
from postroom.triage.jobs import CLASSIFY
from postroom.triage.model import open_model
from postroom.vault import Vault
from tests.support.models import INPUT_PRICE, OUTPUT_PRICE
from tests.support.offices import CATALOGUE, classifier

LEASE_S = 1.0


async def work(database_url: str, model_url: str, key: str, folder: Path) -> None:
    clock = SystemClock()
    settings = ModelSettings(
        provider="compatible",
        name="simulated-small",
        base_url=model_url,
        api_key=SecretStr(key),
        input_price=INPUT_PRICE,
        output_price=OUTPUT_PRICE,
    )
    database = await connect(database_url)
    try:
        async with open_model(settings, Vault(folder), clock) as model:
            queue = JobQueue(database, CATALOGUE, clock)
            handlers = {CLASSIFY.name: classifier(queue, model)}
            worker = Worker(queue, handlers, WorkerSettings(lease_s=LEASE_S), until_idle=True)
            await worker.run()
    finally:
        await database.close()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
