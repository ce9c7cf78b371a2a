"""The control endpoint over HTTP: for those who hold its token, and for nobody else."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from postroom.sim.gmail import oauth
from postroom.sim.gmail.server import GmailSim
from tests.support.gmail_sim import api_client, plain_client
from tests.support.mail import encoded, letter


@pytest.fixture
async def control(sim: GmailSim) -> AsyncIterator[httpx2.AsyncClient]:
    async with plain_client(f"{sim.url}/_sim/", **{"X-Sim-Control": sim.control_token}) as client:
        yield client


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_without_its_token_the_control_endpoint_does_nothing(sim: GmailSim, token: str) -> None:
    async with plain_client(f"{sim.url}/_sim/", **{"X-Sim-Control": token}) as client:
        for path in ("state", "truth", "faults", "deliver", "tokens", "nothing"):
            assert (await client.post(path, json={})).status_code == 401
    async with plain_client(f"{sim.url}/_sim/", Authorization=f"Bearer {sim.token}") as client:
        assert (await client.get("state")).status_code == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("nothing", {}),
        ("faults", {"fault": {"kind": "magic"}}),
        ("faults", {"fault": {"kind": "error"}, "surprise": 1}),
        ("deliver", {"raw": "*"}),
        ("deliver", {}),
        ("deliver", {"raw": "aaaa", "label_ids": ["Label_99"]}),
        ("truth", {"cursor": [1]}),
        ("skew", {"seconds": "soon"}),
        ("faults/clear", []),
    ],
)
async def test_a_bad_command_is_refused(control: httpx2.AsyncClient, path: str, body: Any) -> None:
    answer = await control.post(path, json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"]


async def test_the_state_tells_what_was_called(
    sim: GmailSim, api: httpx2.AsyncClient, control: httpx2.AsyncClient
) -> None:
    for _ in range(3):
        await api.get("profile")
    await api.get("messages/00000000000000ff")
    state = (await control.get("state")).json()
    assert state["calls"] == {"getProfile": 3, "messages.get": 1}
    assert state["errors"] == {"404 notFound": 1}
    assert state["requests"] == 4
    await control.post("counters/reset")
    assert (await control.get("state")).json()["calls"] == {}


async def test_the_truth_comes_in_pages_and_matches_what_the_api_shows(
    api: httpx2.AsyncClient, control: httpx2.AsyncClient
) -> None:
    truth: dict[str, Any] = {}
    cursor = None
    while True:
        page = (await control.post("truth", json={"limit": 7, "cursor": cursor})).json()
        truth |= {each["id"]: each for each in page["messages"]}
        cursor = page["cursor"]
        if cursor is None:
            break
    assert len(truth) == 30
    for message_id, true in truth.items():
        shown = (await api.get(f"messages/{message_id}", params={"format": "raw"})).json()
        raw = base64.urlsafe_b64decode(shown["raw"])
        assert hashlib.sha256(raw).hexdigest() == true["sha256"]
        assert shown["labelIds"] == true["label_ids"]
        assert int(shown["internalDate"]) == true["internal_date"]


async def test_mail_can_be_delivered_as_if_it_had_arrived(api: httpx2.AsyncClient, control: httpx2.AsyncClient) -> None:
    start = (await api.get("profile")).json()["historyId"]
    raw = letter("Arrived")
    sent = {"raw": encoded(raw), "label_ids": ["INBOX", "Label_7"], "category": "receipt"}
    message_id = (await control.post("deliver", json=sent)).json()["id"]
    shown = (await api.get(f"messages/{message_id}", params={"format": "raw"})).json()
    assert shown["labelIds"] == ["INBOX", "Label_7"]
    assert int(shown["historyId"]) > int(start)
    page = (await control.post("truth", json={"limit": 100})).json()["messages"]
    assert next(each for each in page if each["id"] == message_id)["category"] == "receipt"


async def test_faults_tokens_history_and_clock_obey_commands(
    sim: GmailSim, api: httpx2.AsyncClient, control: httpx2.AsyncClient
) -> None:
    rule = (await control.post("faults", json={"method": "getProfile", "fault": {"kind": "error", "code": 500}})).json()
    assert (await api.get("profile")).status_code == 500
    assert (await control.get("state")).json()["fault_hits"] == {"1": 1}
    await control.post("faults/clear", json=rule)
    start = (await api.get("profile")).json()["historyId"]
    await control.post("history/expire")
    assert (await api.get("history", params={"startHistoryId": start})).status_code == 404
    await control.post("skew", json={"seconds": -60})
    narrow = (await control.post("tokens", json={"scopes": [oauth.READONLY]})).json()["token"]
    await control.post("tokens/expire", json={"token": sim.token})
    assert (await api.get("profile")).status_code == 401
    async with api_client(sim.url, narrow) as reader:
        assert (await reader.get("profile")).status_code == 200
        await control.post("tokens/revoke", json={})
        assert (await reader.get("profile")).status_code == 401


async def test_the_record_of_changes_tells_what_happened_and_when(
    api: httpx2.AsyncClient, control: httpx2.AsyncClient
) -> None:
    before = time.time() * 1_000 - 1
    [first, *_] = (await api.get("messages")).json()["messages"]
    await api.post("messages/batchModify", json={"ids": [first["id"]], "removeLabelIds": ["INBOX"]})
    await api.delete(f"messages/{first['id']}")
    changes = (await control.get("changes")).json()["changes"]
    assert [(each["kind"], each["id"], each["labels"]) for each in changes] == [
        ("labelsRemoved", first["id"], ["INBOX"]),
        ("messagesDeleted", first["id"], []),
    ]
    assert all(before <= each["at_ms"] <= time.time() * 1_000 + 1 for each in changes)
