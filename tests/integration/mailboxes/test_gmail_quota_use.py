"""How much of the quota is used and how little is refused: client and stand-in, both whole, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.methods import PROFILES, ProfileName, QuotaProfile
from postroom.mailboxes.limiter import Limiter, limiter_for
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Got
from postroom.sim.gmail.control import SimState
from tests.support import virtual_time
from tests.support.gmail_sim import InProcessSim, in_process_sim
from tests.support.mail import mailbox
from tests.support.virtual_time import VirtualClock

RAMP_UP_S = 60.0
MEASURED_S = 240.0
both_profiles = pytest.mark.parametrize("profile", list(PROFILES.values()), ids=list(ProfileName))


async def read_for_ever(client: GmailClient, ids: list[str]) -> None:
    while True:
        for each in await client.get_messages(ids):
            assert isinstance(each, Got), each


async def ids_of(client: GmailClient) -> list[str]:
    return [ref.id async for page in client.list_messages() for ref in page.messages]


async def measured(
    sim: InProcessSim, clients: list[GmailClient], *, ramp_up_s: float = RAMP_UP_S, measured_s: float = MEASURED_S
) -> SimState:
    """What the stand-in counted over some minutes of clients reading as fast as they may."""
    ids = await ids_of(clients[0])
    readers = [asyncio.create_task(read_for_ever(client, ids)) for client in clients for _ in range(3)]
    await asyncio.sleep(ramp_up_s)
    sim.control.reset_counters()
    await asyncio.sleep(measured_s)
    state = sim.control.state()
    for reader in readers:
        reader.cancel()
    ended = await asyncio.gather(*readers, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
    return state


async def run_with(profile: QuotaProfile, limiters: Callable[[VirtualClock], list[Limiter]]) -> SimState:
    clock = VirtualClock()
    sim = in_process_sim(mailbox(100), profile, clock)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(sim.client(limiter, profile, seed=number))
            for number, limiter in enumerate(limiters(clock))
        ]
        return await measured(sim, clients)


def share_used(state: SimState, profile: QuotaProfile) -> float:
    return state.units / (profile.units_per_minute * MEASURED_S / 60)


@both_profiles
@pytest.mark.req("SY-3", "SY-4")
def test_a_sync_uses_nearly_all_of_the_quota_and_is_hardly_ever_refused(profile: QuotaProfile) -> None:
    state = virtual_time.run(run_with(profile, lambda clock: [limiter_for(profile, clock, dice=random.Random(1))]))
    assert share_used(state, profile) >= 0.95
    assert state.throttled < 0.01 * state.calls["messages.get"]
    assert state.most_units_in_a_minute <= profile.units_per_minute


@both_profiles
@pytest.mark.req("SY-3")
def test_a_person_does_not_wait_for_the_sync(profile: QuotaProfile) -> None:
    async def main() -> list[float]:
        clock = VirtualClock()
        sim = in_process_sim(mailbox(100), profile, clock)
        limiter = limiter_for(profile, clock, dice=random.Random(1))
        async with sim.client(limiter, profile) as sync:
            person = sync.at(PriorityLane.USER_ACTION)
            ids = await ids_of(sync)
            readers = [asyncio.create_task(read_for_ever(sync, ids)) for _ in range(3)]
            await asyncio.sleep(RAMP_UP_S * 2)
            waits = []
            for message_id in ids[:20]:
                began = clock.monotonic()
                await person.modify_message(message_id, add=["STARRED"])
                waits.append(clock.monotonic() - began)
                await asyncio.sleep(2)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            return waits

    assert max(virtual_time.run(main())) < 1.5


@pytest.mark.req("SY-4")
@pytest.mark.parametrize("believed", [PROFILES[ProfileName.LEGACY], None], ids=["believed legacy", "unknown"])
def test_a_quota_that_is_not_what_the_client_believes_is_found_out(believed: QuotaProfile | None) -> None:
    real = PROFILES[ProfileName.MAY_2026]

    async def main() -> SimState:
        clock = VirtualClock()
        sim = in_process_sim(mailbox(100), real, clock)
        async with sim.client(limiter_for(believed, clock, dice=random.Random(1)), believed) as client:
            return await measured(sim, [client], ramp_up_s=900, measured_s=600)

    state = virtual_time.run(main())
    assert state.units >= 0.90 * real.units_per_minute * 10
    # At twenty messages a call, one refused call is twenty refused messages.
    assert state.throttled < 0.02 * state.calls["messages.get"]
