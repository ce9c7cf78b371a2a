"""How much of each quota our client uses, and how many calls are refused: minutes of virtual time, in seconds."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from tests.support import virtual_time
from tests.support.in_process_sim import in_process_sim
from tests.support.sim_mail import mailbox
from tests.support.virtual_time import VirtualClock

from postroom.gmail.limiter import limiter_for
from postroom.gmail.quota import PROFILES, ProfileName

_MINUTES = 10
_READERS = 3


@dataclass(frozen=True, slots=True)
class QuotaUse:
    profile: str
    share_used: float
    """Of the allowance, from the first second on: the ramp-up is part of it."""
    share_throttled: float
    messages_per_second: float


def quota_use(name: ProfileName) -> QuotaUse:
    return virtual_time.run(_measured(name))


async def _measured(name: ProfileName) -> QuotaUse:
    profile, clock = PROFILES[name], VirtualClock()
    sim = in_process_sim(mailbox(200), profile, clock)
    async with sim.client(limiter_for(profile, clock, dice=random.Random(1)), profile) as client:
        ids = [ref.id async for page in client.list_messages() for ref in page.messages]

        async def read() -> None:
            while True:
                await client.get_messages(ids)

        readers = [asyncio.create_task(read()) for _ in range(_READERS)]
        await asyncio.sleep(_MINUTES * 60)
        state = sim.control.state()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    gets = state.calls["messages.get"]
    return QuotaUse(
        profile=name,
        share_used=state.units / (profile.units_per_minute * _MINUTES),
        share_throttled=state.throttled / gets,
        messages_per_second=(gets - state.throttled) / (_MINUTES * 60),
    )
