"""Faults on command: what a rule says happens, as often as it says, and the mailbox stays true."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from email.utils import parsedate_to_datetime

import httpx2
import pytest

from postroom.domain.clock import ManualClock
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.gateway import QuotaLimits
from postroom.sim.gmail.server import GmailSim, running_sim
from tests.integration.sim.test_gmail_refusals import post_batch
from tests.support.gmail_sim import api_client, reason
from tests.support.mail import letter, mailbox


async def statuses(api: httpx2.AsyncClient, path: str, times: int) -> list[int]:
    return [(await api.get(path)).status_code for _ in range(times)]


async def all_ids(api: httpx2.AsyncClient) -> list[str]:
    return [each["id"] for each in (await api.get("messages")).json()["messages"]]


async def test_a_storm_lasts_as_many_calls_as_it_is_told_and_names_a_wait(
    sim: GmailSim, api: httpx2.AsyncClient
) -> None:
    storm = GmailFault(
        kind="error", code=429, reason="rateLimitExceeded", message="Rate Limit Exceeded", retry_after_s=7
    )
    sim.control.add_fault(FaultRule(method="getProfile", fault=storm, skip=1, times=2))
    assert (await api.get("profile")).status_code == 200
    refused = await api.get("profile")
    assert reason(refused) == (429, "rateLimitExceeded")
    assert refused.headers["Retry-After"] == "7"
    assert await statuses(api, "profile", 2) == [429, 200]
    assert await statuses(api, "labels", 1) == [200]


async def test_a_rate_limit_may_come_as_403(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    fault = GmailFault(
        kind="error", code=403, reason="userRateLimitExceeded", domain="usageLimits", message="User Rate Limit"
    )
    sim.control.add_fault(FaultRule(fault=fault))
    refused = await api.get("profile")
    assert reason(refused) == (403, "userRateLimitExceeded")
    assert "Retry-After" not in refused.headers


async def test_the_same_seed_gives_the_same_faults() -> None:
    async def run(seed: int) -> list[int]:
        async with running_sim(mailbox(1)) as sim, api_client(sim.url, sim.token) as api:
            sim.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=500), probability=0.5, seed=seed))
            return await statuses(api, "profile", 40)

    first, again, other = await run(1), await run(1), await run(2)
    assert first == again != other
    assert 5 < Counter(first)[500] < 35


async def test_a_poison_message_always_fails_alone_and_in_a_batch(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    ids = await all_ids(api)
    sim.control.add_fault(
        FaultRule(method="messages.get", ids=frozenset({ids[3]}), fault=GmailFault(kind="error", code=500))
    )
    assert await statuses(api, f"messages/{ids[3]}", 3) == [500, 500, 500]
    assert await statuses(api, f"messages/{ids[4]}", 1) == [200]
    batch = await post_batch(api, sim.url, [f"/gmail/v1/users/me/messages/{each}" for each in ids[:6]])
    assert batch.text.count("HTTP/1.1 200 OK") == 5
    assert batch.text.count("HTTP/1.1 500 ") == 1


async def test_one_part_of_a_batch_can_fail_while_single_calls_do_not(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    sim.control.add_fault(
        FaultRule(method="getProfile", only_in_batch=True, times=1, fault=GmailFault(kind="error", code=503))
    )
    assert await statuses(api, "profile", 2) == [200, 200]
    batch = await post_batch(api, sim.url, ["/gmail/v1/users/me/profile"] * 3)
    assert batch.text.count("HTTP/1.1 503 ") == 1
    assert batch.text.count("HTTP/1.1 200 ") == 2


@pytest.mark.parametrize("kind", ["drop", "truncate"])
async def test_a_connection_breaks_off(sim: GmailSim, api: httpx2.AsyncClient, kind: str) -> None:
    sim.control.add_fault(FaultRule(method="messages.list", times=1, fault=GmailFault.model_validate({"kind": kind})))
    with pytest.raises(httpx2.TransportError):
        await api.get("messages")
    assert await statuses(api, "messages", 1) == [200]


@pytest.mark.parametrize("kind", ["drop", "truncate"])
async def test_a_batch_breaks_off(sim: GmailSim, api: httpx2.AsyncClient, kind: str) -> None:
    sim.control.add_fault(FaultRule(method="batch", times=1, fault=GmailFault.model_validate({"kind": kind})))
    with pytest.raises(httpx2.TransportError):
        await post_batch(api, sim.url, ["/gmail/v1/users/me/profile"])
    assert (await post_batch(api, sim.url, ["/gmail/v1/users/me/profile"])).status_code == 200


async def test_an_answer_may_be_no_json(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    sim.control.add_fault(FaultRule(method="messages.list", times=1, fault=GmailFault(kind="malformed")))
    answer = await api.get("messages")
    assert answer.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        answer.json()


@pytest.mark.parametrize("kind", ["drop", "error"])
async def test_the_answer_can_be_lost_after_the_effect(sim: GmailSim, api: httpx2.AsyncClient, kind: str) -> None:
    message = (await all_ids(api))[0]
    fault = GmailFault.model_validate({"kind": kind, "after_effect": True})
    sim.control.add_fault(FaultRule(method="messages.trash", fault=fault, times=1))
    if kind == "drop":
        with pytest.raises(httpx2.TransportError):
            await api.post(f"messages/{message}/trash")
    else:
        assert (await api.post(f"messages/{message}/trash")).status_code == 503
    truth = {each["id"]: each["label_ids"] for each in sim.control.truth(hashes=False)}
    assert truth[message] == ["TRASH"]


async def test_a_hanging_call_holds_on_until_released(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    sim.control.add_fault(FaultRule(method="getProfile", times=1, fault=GmailFault(kind="hang")))
    hanging = asyncio.create_task(api.get("profile"))
    while sim.control.state().in_flight == 0:
        await asyncio.sleep(0)
    assert await statuses(api, "labels", 1) == [200]
    assert not hanging.done()
    sim.control.release()
    with pytest.raises(httpx2.TransportError):
        await hanging


async def test_a_caller_may_give_up_on_a_hanging_call(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    sim.control.add_fault(FaultRule(method="getProfile", times=1, fault=GmailFault(kind="hang")))
    with pytest.raises(httpx2.ReadTimeout):
        await api.get("profile", timeout=0.05)
    while sim.control.state().in_flight:
        await asyncio.sleep(0)
    assert await statuses(api, "profile", 1) == [200]


async def test_too_many_requests_in_flight_are_refused() -> None:
    limits = QuotaLimits(requests_in_flight=2)
    async with running_sim(mailbox(1), quota=limits) as sim, api_client(sim.url, sim.token) as api:
        sim.control.add_fault(FaultRule(method="getProfile", fault=GmailFault(kind="hang")))
        hanging = [asyncio.create_task(api.get("profile")) for _ in range(2)]
        while sim.control.state().in_flight < 2:
            await asyncio.sleep(0)
        refused = await api.get("labels")
        assert reason(refused) == (429, "rateLimitExceeded")
        assert refused.json()["error"]["message"] == "Too many concurrent requests for user"
        sim.control.release()
        await asyncio.gather(*hanging, return_exceptions=True)
        assert (await api.get("labels")).status_code == 200
        state = sim.control.state()
        assert (state.max_in_flight, state.throttled) == (3, 1)


class HeldClock(ManualClock):
    """Whoever sleeps sleeps until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.awake = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        await self.awake.wait()


async def test_calls_that_take_their_time_meet_in_flight() -> None:
    clock, limits = HeldClock(), QuotaLimits(requests_in_flight=2, service_time_s=0.1)
    async with running_sim(mailbox(1), quota=limits, clock=clock) as sim, api_client(sim.url, sim.token) as api:
        slow = [asyncio.create_task(api.get("profile")) for _ in range(2)]
        while sim.control.state().in_flight < 2:
            await asyncio.sleep(0)
        assert reason(await api.get("labels")) == (429, "rateLimitExceeded")
        clock.awake.set()
        assert [answer.status_code for answer in await asyncio.gather(*slow)] == [200, 200]


async def test_latency_takes_the_time_of_the_clock() -> None:
    clock = ManualClock()
    async with running_sim(mailbox(1), clock=clock) as sim, api_client(sim.url, sim.token) as api:
        sim.control.add_fault(FaultRule(method="getProfile", times=1, fault=GmailFault(kind="latency", seconds=30)))
        assert await statuses(api, "profile", 2) == [200, 200]
        assert clock.monotonic() == 30


async def test_a_slow_call_can_also_fail(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    sim.control.add_fault(FaultRule(fault=GmailFault(kind="latency", seconds=0.01)))
    sim.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=502), times=1))
    assert await statuses(api, "profile", 2) == [502, 200]
    assert sim.control.state().fault_hits == {"1": 2, "2": 1}


async def test_the_stand_in_stops_while_calls_hang() -> None:
    async with running_sim(mailbox(1)) as sim, api_client(sim.url, sim.token) as api:
        sim.control.add_fault(FaultRule(method="getProfile", fault=GmailFault(kind="hang")))
        hanging = asyncio.create_task(api.get("profile"))
        while sim.control.state().in_flight == 0:
            await asyncio.sleep(0)
    with pytest.raises(httpx2.TransportError):
        await hanging


async def test_expired_and_revoked_tokens_are_refused(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    other = sim.control.new_token()
    sim.control.expire_tokens(sim.token)
    assert reason(await api.get("profile")) == (401, "authError")
    async with api_client(sim.url, other) as second:
        assert (await second.get("profile")).status_code == 200
        sim.control.revoke()
        assert reason(await second.get("profile")) == (401, "authError")


async def test_history_can_be_forgotten(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    start = (await api.get("profile")).json()["historyId"]
    sim.control.deliver(letter())
    assert (await api.get("history", params={"startHistoryId": start})).status_code == 200
    sim.control.expire_history()
    assert reason(await api.get("history", params={"startHistoryId": start})) == (404, "notFound")
    fresh = (await api.get("profile")).json()["historyId"]
    assert (await api.get("history", params={"startHistoryId": fresh})).json() == {"historyId": fresh}


async def records(api: httpx2.AsyncClient, start: str) -> list[str]:
    """All record ids since a start, over as many pages as it takes."""
    found: list[str] = []
    params = {"startHistoryId": start}
    while True:
        answer = (await api.get("history", params=params)).json()
        found += [record["id"] for record in answer.get("history", [])]
        if "nextPageToken" not in answer:
            return found
        params["pageToken"] = answer["nextPageToken"]


async def test_history_can_come_twice_and_in_the_wrong_order(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    start = sim.control.state().history_id
    for number in range(3):
        sim.control.deliver(letter(f"New {number}"))
    true = await records(api, start)
    assert len(true) == 3
    rule = sim.control.add_fault(FaultRule(method="history.list", fault=GmailFault(kind="duplicate_history")))
    assert await records(api, start) == [each for each in true for _ in range(2)]
    sim.control.clear_faults(rule)
    sim.control.add_fault(FaultRule(fault=GmailFault(kind="reorder_history")))
    assert await records(api, start) == true[::-1]


async def test_history_pages_may_be_empty_and_not_the_last(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    start = sim.control.state().history_id
    delivered = [sim.control.deliver(letter(f"New {number}")) for number in range(12)]
    seen: list[str] = []
    empty = 0
    params = {"startHistoryId": start, "maxResults": "1"}
    while True:
        answer = (await api.get("history", params=params)).json()
        seen += [record["messagesAdded"][0]["message"]["id"] for record in answer.get("history", [])]
        empty += "history" not in answer
        if "nextPageToken" not in answer:
            break
        params["pageToken"] = answer["nextPageToken"]
    assert seen == delivered
    assert empty > 0


async def test_the_servers_clock_can_be_wrong(sim: GmailSim, api: httpx2.AsyncClient) -> None:
    right = parsedate_to_datetime((await api.get("profile")).headers["Date"])
    sim.control.skew_clock(3600)
    wrong = parsedate_to_datetime((await api.get("profile")).headers["Date"])
    assert 3590 < (wrong - right).total_seconds() < 3620
