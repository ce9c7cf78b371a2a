"""What the stand-in refuses, and in which words."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from postroom.domain.clock import ManualClock
from postroom.mailboxes.gmail.methods import PROFILES, ProfileName
from postroom.sim.gmail import oauth
from postroom.sim.gmail.gateway import QuotaLimits
from postroom.sim.gmail.server import GmailSim, running_sim
from tests.support.gmail_sim import api_client, plain_client, reason
from tests.support.mail import encoded, letter, mailbox


async def first_id(api: httpx2.AsyncClient) -> str:
    found = (await api.get("messages", params={"maxResults": 1})).json()["messages"][0]["id"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("verb", "path", "body", "refusal"),
    [
        ("GET", "messages/00000000000000ff", None, (404, "notFound")),
        ("GET", "messages/nonsense", None, (400, "invalidArgument")),
        ("GET", "messages/{id}?format=pretty", None, (400, "invalidArgument")),
        ("GET", "messages?pageToken=garbage", None, (400, "invalidArgument")),
        ("GET", "messages?maxResults=0", None, (400, "invalidArgument")),
        ("GET", "messages?maxResults=many", None, (400, "invalidArgument")),
        ("GET", "messages?labelIds=Label_99", None, (400, "invalidArgument")),
        ("GET", "messages?q=after:never", None, (400, "invalidArgument")),
        ("GET", "messages/{id}/attachments/garbage", None, (400, "invalidArgument")),
        ("GET", "threads?pageToken=AAAA", None, (400, "invalidArgument")),
        ("GET", "threads/00000000000000ff", None, (404, "notFound")),
        ("GET", "history", None, (400, "invalidArgument")),
        ("GET", "history?startHistoryId=abc", None, (400, "invalidArgument")),
        ("GET", "history?startHistoryId=1", None, (404, "notFound")),
        ("GET", "history?startHistoryId=99999999999999999999", None, (404, "notFound")),
        ("GET", "history?startHistoryId=10000030&historyTypes=gossip", None, (400, "invalidArgument")),
        ("GET", "history?startHistoryId=10000030&pageToken=x", None, (400, "invalidArgument")),
        ("POST", "messages/{id}/modify", {"addLabelIds": ["SENT"]}, (400, "invalidArgument")),
        ("POST", "messages/{id}/modify", {"addLabelIds": ["DRAFT"]}, (400, "invalidArgument")),
        ("POST", "messages/{id}/modify", {"removeLabelIds": ["SENT"]}, (400, "invalidArgument")),
        ("POST", "messages/{id}/modify", {"addLabelIds": ["Label_99"]}, (400, "invalidArgument")),
        ("POST", "messages/{id}/modify", {"addLabelIds": "INBOX"}, (400, "invalidArgument")),
        ("POST", "messages/{id}/modify", {}, (400, "invalidArgument")),
        ("POST", "messages/{id}/modify", ["INBOX"], (400, "invalidArgument")),
        ("POST", "messages/batchModify", {"ids": [], "addLabelIds": ["INBOX"]}, (400, "invalidArgument")),
        ("POST", "messages/batchDelete", {"ids": ["1"] * 1001}, (400, "invalidArgument")),
        ("POST", "messages/send", {"raw": encoded(letter(to=""))}, (400, "invalidArgument")),
        ("POST", "messages/send", {}, (400, "invalidArgument")),
        ("POST", "messages/send", {"raw": "*"}, (400, "invalidArgument")),
        ("POST", "messages", {"raw": encoded(letter()), "threadId": "ff"}, (404, "notFound")),
        ("POST", "drafts/send", {"id": "r1"}, (404, "notFound")),
        ("POST", "drafts/send", {}, (400, "invalidArgument")),
        ("POST", "labels", {"name": "bills"}, (409, "aborted")),
        ("POST", "labels", {"name": " "}, (400, "invalidArgument")),
        ("POST", "labels", {"name": "x", "labelListVisibility": "maybe"}, (400, "invalidArgument")),
        ("DELETE", "labels/INBOX", None, (400, "invalidArgument")),
        ("GET", "labels/Label_99", None, (404, "notFound")),
        ("POST", "watch", {"topicName": "nowhere"}, (400, "invalidArgument")),
        ("GET", "settings/filters", None, (404, "notFound")),
    ],
)
async def test_a_bad_call_is_refused_with_a_reason(
    sim: GmailSim, api: httpx2.AsyncClient, verb: str, path: str, body: Any, refusal: tuple[int, str]
) -> None:
    before = list(sim.control.truth())
    path = path.replace("{id}", await first_id(api))
    assert reason(await api.request(verb, path, json=body)) == refusal
    assert list(sim.control.truth()) == before


async def test_json_that_is_none_is_refused(api: httpx2.AsyncClient) -> None:
    answer = await api.post("messages/batchModify", content=b"{", headers={"Content-Type": "application/json"})
    assert reason(answer) == (400, "invalidArgument")


async def test_a_page_token_is_good_only_for_its_own_search(api: httpx2.AsyncClient) -> None:
    token = (await api.get("messages", params={"maxResults": 5, "q": "letter"})).json()["nextPageToken"]
    assert (await api.get("messages", params={"q": "letter", "pageToken": token})).status_code == 200
    assert reason(await api.get("messages", params={"q": "other", "pageToken": token})) == (400, "invalidArgument")


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic eDp5"])
async def test_a_caller_without_a_good_token_is_told_so(sim: GmailSim, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with plain_client(sim.url, **headers) as client:
        answer = await client.get("/gmail/v1/users/me/profile")
    assert reason(answer) == (401, "authError")


async def test_another_persons_mailbox_is_closed(sim: GmailSim) -> None:
    async with plain_client(sim.url, Authorization=f"Bearer {sim.token}") as client:
        assert (await client.get(f"/gmail/v1/users/{sim.email}/profile")).status_code == 200
        assert (await client.get("/gmail/v1/users/eve@example.com/profile")).status_code == 403


@pytest.mark.parametrize(
    ("scope", "verb", "path", "allowed"),
    [
        (oauth.READONLY, "GET", "messages/{id}?format=raw", True),
        (oauth.READONLY, "POST", "messages/{id}/trash", False),
        (oauth.MODIFY, "POST", "messages/{id}/trash", True),
        (oauth.MODIFY, "DELETE", "messages/{id}", False),
        (oauth.MODIFY, "POST", "messages/batchDelete", False),
        (oauth.FULL, "DELETE", "messages/{id}", True),
        (oauth.METADATA, "GET", "messages/{id}?format=metadata", True),
        (oauth.METADATA, "GET", "messages/{id}?format=raw", False),
        (oauth.METADATA, "GET", "messages?q=hello", False),
        (oauth.LABELS, "GET", "labels", True),
        (oauth.LABELS, "GET", "messages", False),
    ],
)
async def test_a_grant_opens_what_it_names_and_no_more(
    sim: GmailSim, api: httpx2.AsyncClient, scope: str, verb: str, path: str, allowed: bool
) -> None:
    path = path.replace("{id}", await first_id(api))
    async with api_client(sim.url, sim.control.new_token(frozenset({scope}))) as client:
        answer = await client.request(verb, path)
    assert (answer.status_code < 300) is allowed
    if not allowed:
        assert reason(answer) in [(403, "insufficientPermissions"), (403, "forbidden")]


async def test_quota_is_refused_with_a_time_and_comes_back() -> None:
    clock = ManualClock()
    async with running_sim(mailbox(3), quota="2026", clock=clock) as sim, api_client(sim.url, sim.token) as api:
        for _ in range(60):
            assert (await api.post("watch", json={"topicName": "projects/p/topics/t"})).status_code == 200
        refused = await api.get("profile")
        assert reason(refused) == (429, "userRateLimitExceeded")
        assert "Retry after 2026-01-01T00:01:00" in refused.json()["error"]["message"]
        clock.advance(60)
        assert (await api.get("profile")).status_code == 200
        state = sim.control.state()
        assert (state.units, state.throttled, state.most_units_in_a_minute) == (6001, 1, 6000)


async def test_each_part_of_a_batch_is_charged_and_fails_alone() -> None:
    limits = QuotaLimits(PROFILES[ProfileName.MAY_2026], batch_parts_at_once=4)
    async with (
        running_sim(mailbox(10), quota=limits, clock=ManualClock()) as sim,
        api_client(sim.url, sim.token) as api,
    ):
        ids = [each["id"] for each in (await api.get("messages")).json()["messages"]]
        answer = await post_batch(api, sim.url, [f"/gmail/v1/users/me/messages/{each}" for each in ids[:6]])
        assert answer.status_code == 200
        assert answer.text.count("HTTP/1.1 200 OK") == 4
        assert answer.text.count("HTTP/1.1 429 ") == 2
        assert answer.text.count("Too many concurrent requests for user") == 4
        assert sim.control.state().units == 5 + 4 * 20


@pytest.mark.parametrize(("parts", "status"), [(100, 200), (101, 400)])
async def test_a_batch_has_at_most_a_hundred_parts(
    sim: GmailSim, api: httpx2.AsyncClient, parts: int, status: int
) -> None:
    answer = await post_batch(api, sim.url, ["/gmail/v1/users/me/profile"] * parts)
    assert answer.status_code == status


@pytest.mark.parametrize(
    "body", [b"", b"--b\r\n\r\n\r\n--b--", b"--b\r\nContent-Type: application/http\r\n\r\nGET\r\n--b--"]
)
async def test_a_broken_batch_is_an_error_and_not_a_crash(sim: GmailSim, api: httpx2.AsyncClient, body: bytes) -> None:
    answer = await api.post(f"{sim.url}/batch", content=body, headers={"Content-Type": "multipart/mixed; boundary=b"})
    assert answer.status_code == 400 or "HTTP/1.1 400" in answer.text


async def post_batch(api: httpx2.AsyncClient, url: str, paths: list[str]) -> httpx2.Response:
    parts = "".join(
        f"--b\r\nContent-Type: application/http\r\nContent-ID: <p{number}>\r\n\r\nGET {path} HTTP/1.1\r\n\r\n\r\n"
        for number, path in enumerate(paths)
    )
    headers = {"Content-Type": 'multipart/mixed; boundary="b"'}
    return await api.post(f"{url}/batch/gmail/v1", content=f"{parts}--b--\r\n".encode(), headers=headers)
