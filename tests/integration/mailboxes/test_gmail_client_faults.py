"""What the client makes of a service that misbehaves: nothing lost, nothing dropped, and words that help."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import httpx2
import pytest

from postroom.domain.clock import SystemClock
from postroom.domain.errors import BadInput
from postroom.mailboxes.errors import (
    CallRefused,
    Gone,
    HistoryExpired,
    LoginNeeded,
    MailboxThrottled,
    MailboxUnavailable,
    MailboxUnreachable,
    NotGmail,
    PermissionMissing,
)
from postroom.mailboxes.gmail.client import GmailClient, connected
from postroom.mailboxes.gmail.fetching import ATTEMPTS, Fetched
from postroom.mailboxes.gmail.resources import MessageRef
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.limiter import limiter_for
from postroom.mailboxes.protocol import Failed, Got, MissingMessage
from postroom.sim.gmail import oauth
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.server import GmailSim, running_sim
from tests.support.gmail_sim import UNHURRIED, EagerClock, FixedToken, RenewedToken, client_of
from tests.support.mail import letter, mailbox

COUNT = 50
TOO_MANY = GmailFault(kind="error", code=429, reason="rateLimitExceeded", message="Too many", domain="usageLimits")
BROKEN = GmailFault(kind="error", code=500, reason="backendError")


@asynccontextmanager
async def sim_and_client(**options: object) -> AsyncIterator[tuple[GmailSim, GmailClient, list[str]]]:
    async with running_sim(mailbox(COUNT)) as sim, client_of(sim, **options) as client:  # type: ignore[arg-type]
        ids = [ref.id async for page in client.list_messages() for ref in page.messages]
        sim.control.reset_counters()
        yield sim, client, ids


def kinds(fetched: tuple[Fetched, ...]) -> list[type[Fetched]]:
    return [type(each) for each in fetched]


@pytest.mark.req("SY-4")
async def test_of_a_long_listing_only_the_page_that_fails_is_asked_for_again() -> None:
    async with sim_and_client() as (sim, client, ids):
        sim.control.add_fault(FaultRule(fault=BROKEN, method="messages.list", probability=0.2, seed=1))
        listed = [ref.id async for page in client.list_messages(page_size=1) for ref in page.messages]
        assert listed == ids
        calls, failed = sim.control.state().calls["messages.list"], sim.control.state().errors["500 backendError"]
        assert failed > 5
        assert calls == COUNT + failed


@pytest.mark.req("SY-4")
@pytest.mark.parametrize(
    ("fault", "attempts"),
    [(BROKEN, 3), (TOO_MANY.model_copy(update={"retry_after_s": 11}), 1)],
    ids=["broken", "told to wait long"],
)
async def test_a_page_that_cannot_be_had_is_an_error(fault: GmailFault, attempts: int) -> None:
    async with sim_and_client() as (sim, client, _):
        sim.control.add_fault(FaultRule(fault=fault, method="messages.list"))
        with pytest.raises((MailboxUnavailable, MailboxThrottled)):
            await anext(client.list_messages())
        assert sim.control.state().calls["messages.list"] == attempts


@pytest.mark.req("SY-4")
@pytest.mark.parametrize(
    "fault",
    [
        TOO_MANY,
        GmailFault(kind="error", code=403, reason="userRateLimitExceeded"),
        BROKEN,
        GmailFault(kind="error", code=503, reason="backendError"),
        GmailFault(kind="drop"),
        GmailFault(kind="truncate"),
        GmailFault(kind="malformed"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.code}",
)
async def test_a_storm_delays_messages_and_loses_none(fault: GmailFault) -> None:
    async with sim_and_client(batch_size=5) as (sim, client, ids):
        sim.control.add_fault(FaultRule(fault=fault, probability=0.3, seed=5))
        fetched = await client.get_messages(ids)
        assert [each.id for each in fetched] == ids
        assert kinds(fetched) == [Got] * COUNT
        assert sum(sim.control.state().fault_hits.values()) > 0


async def test_one_part_of_a_batch_that_fails_is_asked_for_again_alone() -> None:
    async with sim_and_client() as (sim, client, ids):
        sim.control.add_fault(FaultRule(fault=BROKEN, ids=frozenset({ids[3]}), only_in_batch=True))
        assert kinds(await client.get_messages(ids[:20])) == [Got] * 20
        state = sim.control.state()
        assert (state.batches, state.calls["messages.get"]) == (1, 21)


async def test_a_poison_message_is_reported_and_its_neighbours_arrive() -> None:
    async with sim_and_client() as (sim, client, ids):
        sim.control.add_fault(FaultRule(fault=BROKEN, ids=frozenset({ids[7]})))
        fetched = await client.get_messages(ids)
        poison = fetched[7]
        assert isinstance(poison, Failed)
        assert isinstance(poison.error, MailboxUnavailable)
        assert kinds(fetched).count(Got) == COUNT - 1
        assert sim.control.state().fault_hits == {"1": ATTEMPTS}


async def test_a_message_that_gmail_refuses_is_not_asked_for_again() -> None:
    async with sim_and_client() as (sim, client, ids):
        refusal = GmailFault(kind="error", code=400, reason="failedPrecondition", message="Mail is odd")
        sim.control.add_fault(FaultRule(fault=refusal, ids=frozenset({ids[0]})))
        failed = (await client.get_messages(ids))[0]
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, CallRefused)
        assert sim.control.state().fault_hits == {"1": 1}


async def test_every_id_gets_an_answer_in_the_order_of_the_question() -> None:
    async with sim_and_client() as (_, client, ids):
        wanted = [ids[0], "00000000000000ff", ids[1], ids[0]]
        fetched = await client.get_messages(wanted)
        assert fetched[1] == MissingMessage("00000000000000ff")
        assert [each.id for each in fetched] == [ids[0], "00000000000000ff", ids[1]]
        assert await client.get_messages([]) == ()


async def test_a_batch_that_always_breaks_is_taken_apart() -> None:
    async with sim_and_client() as (sim, client, ids):
        sim.control.add_fault(FaultRule(fault=GmailFault(kind="truncate"), method="batch"))
        assert kinds(await client.get_messages(ids[:10])) == [Got] * 10
        assert sim.control.state().calls["batch"] == 2


async def test_a_storm_that_does_not_end_is_reported_for_every_id() -> None:
    async with sim_and_client() as (sim, client, ids):
        sim.control.add_fault(FaultRule(fault=TOO_MANY))
        fetched = await client.get_messages(ids[:20])
        assert all(isinstance(each, Failed) and isinstance(each.error, MailboxThrottled) for each in fetched)


@pytest.mark.req("SY-4")
async def test_retry_after_is_obeyed() -> None:
    clock = EagerClock()
    async with sim_and_client(clock=clock) as (sim, client, ids):
        sim.control.add_fault(FaultRule(fault=TOO_MANY.model_copy(update={"retry_after_s": 17}), times=1))
        with pytest.raises(MailboxThrottled, match="17 s"):
            await client.get_message(ids[0])
        began = clock.monotonic()
        await client.get_message(ids[0])
        assert clock.monotonic() - began >= 16.9


@pytest.mark.req("SY-4")
async def test_a_very_long_pause_is_the_callers_to_wait_out() -> None:
    async with sim_and_client() as (sim, client, ids):
        sim.control.add_fault(FaultRule(fault=TOO_MANY.model_copy(update={"retry_after_s": 7_200}), times=1))
        with pytest.raises(MailboxThrottled):
            await client.get_message(ids[0])
        with pytest.raises(MailboxThrottled, match="pause") as refused:
            await client.get_message(ids[0])
        assert refused.value.retry_after is not None
        assert 7_000 < refused.value.retry_after.total_seconds() <= 7_200
        assert sim.control.state().calls["messages.get"] == 1


async def test_a_call_that_hangs_ends_with_the_timeout() -> None:
    async with running_sim(mailbox(1)) as sim:
        sim.control.add_fault(FaultRule(fault=GmailFault(kind="hang")))
        config = TransportConfig(api_base=sim.url, read_s=0.05)
        async with client_of(sim, config=config) as client:
            with pytest.raises(MailboxUnavailable, match="did not answer in time") as timeout:
                await client.get_profile()
            assert not timeout.value.may_have_happened
            with pytest.raises(MailboxUnavailable) as timeout:
                await client.insert_message(letter())
            assert timeout.value.may_have_happened


async def test_an_answer_that_trickles_ends_with_the_total_limit() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
        while not reader.at_eof():
            writer.write(b" ")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1_000), 0.01)

    async with served_by(trickle) as url:
        with pytest.raises(MailboxUnavailable, match="in time"):
            await profile_at(TransportConfig(api_base=url, read_s=5, total_s=0.1))


async def test_an_answer_without_end_is_broken_off() -> None:
    async with running_sim(mailbox(1)) as sim:
        config = TransportConfig(api_base=sim.url, max_answer_bytes=20)
        async with client_of(sim, config=config) as client:
            with pytest.raises(MailboxUnavailable, match="larger than 20 bytes"):
                await client.get_profile()


@pytest.mark.req("PL-6", "JB-7")
async def test_an_expired_token_is_renewed_once_for_everyone() -> None:
    async with running_sim(mailbox(COUNT)) as sim:
        credentials = RenewedToken(sim.token, sim.control.new_token)
        async with client_of(sim, credentials=credentials) as client:
            ids = [ref.id async for page in client.list_messages() for ref in page.messages]
            sim.control.expire_tokens()
            await asyncio.gather(*(client.get_message(each) for each in ids[:10]), client.get_messages(ids))
            assert credentials.renewals == 1


@pytest.mark.req("JB-7")
async def test_a_revoked_grant_asks_for_a_new_login() -> None:
    async with sim_and_client() as (sim, client, ids):
        sim.control.revoke()
        with pytest.raises(LoginNeeded, match="account add"):
            await client.get_message(ids[0])
        with pytest.raises(LoginNeeded, match="account add"):
            await client.get_messages(ids)


async def test_a_renewed_token_that_is_refused_too_asks_for_a_new_login() -> None:
    async with running_sim(mailbox(1)) as sim:
        credentials = RenewedToken("ya29.bad", lambda: "ya29.just-as-bad")
        async with client_of(sim, credentials=credentials) as client:
            with pytest.raises(LoginNeeded):
                await client.get_profile()
        assert credentials.renewals == 1


@pytest.mark.req("JB-7")
async def test_a_missing_permission_is_named() -> None:
    async with running_sim(mailbox(1)) as sim:
        token = sim.control.new_token(frozenset({oauth.READONLY}))
        async with client_of(sim, credentials=FixedToken(token)) as client:
            with pytest.raises(PermissionMissing, match=r"gmail\.modify"):
                await client.modify_message("1", add=["STARRED"])
            with pytest.raises(PermissionMissing, match=r"https://mail\.google\.com/"):
                await client.delete_message("1")


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served_by(handler: Handler) -> AsyncIterator[str]:
    """A server of a few lines; every connection is over when the block is."""
    ended: list[asyncio.Future[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(done := asyncio.get_running_loop().create_future())
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            done.set_result(None)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*ended)


async def profile_at(config: TransportConfig) -> None:
    clock = SystemClock()
    limiter = limiter_for(None, clock, tuning=UNHURRIED)
    async with connected(FixedToken("ya29.test-token"), limiter, clock, config=config) as client:
        await client.get_profile()


@pytest.mark.req("PL-8")
@pytest.mark.parametrize(
    "head",
    ["200 OK\r\nContent-Type: text/html", "404 Not Found\r\nContent-Type: text/html", "301 Moved\r\nLocation: /"],
)
async def test_an_address_that_is_not_gmail_says_what_to_do(head: str) -> None:
    async def other_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello".encode())
        await writer.drain()

    async with served_by(other_server) as url:
        with pytest.raises(NotGmail, match="Check the account's API address"):
            await profile_at(TransportConfig(api_base=url))


@pytest.mark.req("PL-8")
async def test_a_port_where_nobody_listens_is_told_apart() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(MailboxUnreachable, match="refused the connection"):
        await profile_at(TransportConfig(api_base=url))


@pytest.mark.req("PL-8")
async def test_a_name_that_does_not_exist_is_a_dns_problem() -> None:
    with pytest.raises(MailboxUnreachable, match="DNS"):
        await profile_at(TransportConfig(api_base="https://gmail.invalid"))


@pytest.mark.req("SY-13")
async def test_an_expired_history_id_can_be_told_apart() -> None:
    async with sim_and_client() as (sim, client, _):
        since = (await client.get_profile()).history_id
        sim.control.expire_history()
        with pytest.raises(HistoryExpired):
            await anext(client.list_history(since))
        with pytest.raises(BadInput, match="since"):
            await anext(client.list_history("yesterday"))


@pytest.mark.req("SY-13")
async def test_empty_history_pages_are_passed_and_nothing_is_missed() -> None:
    async with sim_and_client() as (sim, client, _):
        since = (await client.get_profile()).history_id
        delivered = [sim.control.deliver(letter(f"News {number}")) for number in range(1_200)]
        pages = [page async for page in client.list_history(since)]
        assert [ref.id for page in pages for record in page.records for ref in record.added] == delivered
        assert pages[-1].history_id == sim.control.state().history_id


async def test_a_large_message_goes_through_the_upload_address_of_the_same_server() -> None:
    async with sim_and_client() as (_, client, _):
        raw = letter("Large", "x" * 60 + "\n" + "y" * (5 << 20))
        kept = await client.insert_message(raw, label_ids=["STARRED"])
        back = await client.get_message(kept.id)
        assert back.raw is not None
        assert back.raw.rstrip() == raw.rstrip()
        assert back.label_ids == {"STARRED"}


async def test_no_more_than_eight_requests_are_in_flight() -> None:
    async with sim_and_client(batch_size=1) as (sim, client, ids):
        sim.control.add_fault(FaultRule(fault=GmailFault(kind="latency", seconds=0.01)))
        await client.get_messages(ids)
        assert 4 <= sim.control.state().max_in_flight <= 8


async def test_a_caller_who_gives_up_leaves_nothing_behind() -> None:
    async with running_sim(mailbox(COUNT)) as sim:
        clock = SystemClock()
        limiter = limiter_for(None, clock, tuning=UNHURRIED)
        async with client_of(sim, clock=clock, limiter=limiter, batch_size=5) as client:
            ids = [ref.id async for page in client.list_messages() for ref in page.messages]
            sim.control.add_fault(FaultRule(fault=GmailFault(kind="hang"), method="batch"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.get_messages(ids), 0.1)
            assert (limiter.gate.in_flight, limiter.waiting) == (0, 0)
            sim.control.clear_faults()
            assert kinds(await client.get_messages(ids)) == [Got] * COUNT


@pytest.mark.req("PL-6")
async def test_no_error_or_log_line_holds_the_token_or_the_query(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    problems: list[str] = []
    for fault in (
        TOO_MANY,
        BROKEN,
        GmailFault(kind="drop"),
        GmailFault(kind="malformed"),
        GmailFault(kind="error", code=400),
    ):
        async with sim_and_client() as (sim, client, _):
            sim.control.add_fault(FaultRule(fault=fault))
            with pytest.raises((MailboxThrottled, MailboxUnavailable, CallRefused)) as failed:
                await anext(client.list_messages("subject:very-private"))
            problems += [repr(failed.value), repr(failed.value.__cause__), repr(failed.value.__context__)]
            assert sim.token not in caplog.text
            assert sim.token not in "".join(problems)
    ours = "".join(record.getMessage() for record in caplog.records if record.name.startswith("postroom"))
    assert "very-private" not in ours + "".join(problems)


async def test_a_message_that_is_gone_is_not_a_failure() -> None:
    async with sim_and_client() as (_, client, ids):
        await client.delete_message(ids[0])
        with pytest.raises(Gone, match=ids[0]):
            await client.get_message(ids[0])


REFUSED_TOKEN: dict[str, object] = {"error": {"code": 401, "message": "no", "errors": [{"reason": "authError"}]}}


def batch_answer(*parts: tuple[int, Mapping[str, object]], status: int = 200) -> httpx2.Response:
    lines = []
    for number, message in parts:
        lines += ["--b", "Content-Type: application/http", f"Content-ID: <response-{number}>", ""]
        lines += [f"HTTP/1.1 {status} Whatever", "Content-Type: application/json", "", json.dumps(message)]
    text = "\r\n".join([*lines, "--b--", ""])
    return httpx2.Response(200, headers={"Content-Type": "multipart/mixed; boundary=b"}, text=text)


async def test_a_part_that_is_missing_or_about_another_message_is_asked_for_again() -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        if request.url.path.startswith("/batch"):
            return batch_answer((0, {"id": "a", "raw": "YQ"}), (1, {"id": "x", "raw": "eA"}))
        return httpx2.Response(200, json={"id": request.url.path[-1], "raw": "YmM"})

    clock = EagerClock()
    limiter = limiter_for(None, clock, tuning=UNHURRIED)
    config = TransportConfig(api_base="http://127.0.0.1")
    transport = httpx2.MockTransport(answer)
    async with connected(FixedToken("t"), limiter, clock, config=config, http_transport=transport) as client:
        fetched = await client.get_messages(["a", "b", "c"])
    assert [each.message.raw for each in fetched if isinstance(each, Got)] == [b"a", b"bc", b"bc"]
    assert sorted(asked[1:]) == ["/gmail/v1/users/me/messages/b", "/gmail/v1/users/me/messages/c"]


async def test_a_token_refused_inside_a_batch_is_renewed() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.headers["Authorization"] == "Bearer old":
            return batch_answer((0, REFUSED_TOKEN), (1, REFUSED_TOKEN), status=401)
        return batch_answer((0, {"id": "a", "raw": "YQ"}), (1, {"id": "b", "raw": "Yg"}))

    clock, credentials = EagerClock(), RenewedToken("old", lambda: "new")
    limiter = limiter_for(None, clock, tuning=UNHURRIED)
    config = TransportConfig(api_base="http://127.0.0.1")
    transport = httpx2.MockTransport(answer)
    async with connected(credentials, limiter, clock, config=config, http_transport=transport) as client:
        assert kinds(await client.get_messages(["a", "b"])) == [Got, Got]
    assert credentials.renewals == 1


async def test_changes_wanted_at_the_same_moment_share_a_request_and_each_has_its_own_answer() -> None:
    async with sim_and_client() as (sim, client, ids):
        sim.control.add_fault(FaultRule(method="messages.modify", ids=frozenset({ids[1]}), fault=BROKEN))
        changes = [
            client.modify_message(each, add=["STARRED"]) for each in (ids[0], ids[1], ids[2], "1900000003419999")
        ]
        first, broken, third, missing = await asyncio.gather(*changes, return_exceptions=True)
        calls = sim.control.state().calls
    assert isinstance(first, MessageRef)
    assert isinstance(third, MessageRef)
    assert "STARRED" in first.label_ids & third.label_ids
    assert isinstance(broken, MailboxUnavailable)
    assert broken.may_have_happened
    assert isinstance(missing, Gone)
    assert calls["batch"] == 1


async def test_a_caller_that_gives_up_takes_no_other_with_it() -> None:
    async with sim_and_client() as (sim, client, ids):
        sim.control.add_fault(FaultRule(method="batch", fault=GmailFault(kind="hang"), times=1))
        tasks = [asyncio.create_task(client.modify_message(each, add=["STARRED"])) for each in ids[:3]]
        while not sim.control.state().calls.get("batch"):
            await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        labels = {each.message.id: each.message.label_ids for each in await client.get_messages(ids[:3])
                  if isinstance(each, Got)}  # fmt: skip
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(isinstance(each, MessageRef) for each in results[1:])
    assert all("STARRED" in labels[each] for each in ids[1:3])
    assert "STARRED" not in labels[ids[0]]
