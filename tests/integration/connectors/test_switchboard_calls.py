"""Calls to the Switchboard over HTTP: batches, and every refusal as the error that it means."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from postroom.connectors.mcp_client import http_client, over_http
from postroom.connectors.priority import FALLBACK
from postroom.connectors.source_mail import SourceMail, envelope_of, metadata_payload
from postroom.connectors.switchboard_client import SwitchboardAway, SwitchboardClient, TokenRefused
from postroom.contract.mail import ArchivedRef, RawMailArgument
from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.domain.envelope import Envelope
from postroom.domain.errors import BadInput, NotAllowed
from postroom.domain.roles import Role
from postroom.mail.headers import Headers
from tests.support.switchboards import Bench, open_bench, served

ME = "me@example.org"


@asynccontextmanager
async def over_loopback(
    database: Database, path: Path, role: Role = Role.CONNECTOR, **token: object
) -> AsyncIterator[tuple[SwitchboardClient, Bench]]:
    async with open_bench(database, path, ManualClock()) as bench, served(bench) as url, http_client() as http:
        await bench.account(ME)
        text = await bench.token(role, **token)
        yield SwitchboardClient(over_http(url, text, http), ME), bench


def envelope(number: int) -> Envelope:
    mail = SourceMail(f"{number:016x}", "", frozenset(), 1_700_000_000_000, Headers((("From", "ann@x.example"),)))
    return envelope_of(mail, ME, FALLBACK, metadata_payload(mail), None)


@pytest.mark.req("PL-4")
async def test_more_than_a_hundred_envelopes_travel_in_batches(database: Database, tmp_path: Path) -> None:
    async with over_loopback(database, tmp_path) as (switchboard, _):
        results = await switchboard.ingest([envelope(number) for number in range(230)])
        assert [result.status for result in results] == ["accepted"] * 230
        again = await switchboard.ingest([envelope(229), envelope(500)])
        assert [result.duplicate for result in again] == [True, False]
        assert switchboard.backfill_enabled, "every answer says so"


def raw_mail(gmail_id: str, raw: bytes, received_ms: int = 0) -> RawMailArgument:
    return RawMailArgument(gmail_id=gmail_id, labels=["INBOX"], internal_date=received_ms, raw=raw)


async def test_mail_is_stored_and_found_again(database: Database, tmp_path: Path) -> None:
    async with over_loopback(database, tmp_path) as (switchboard, _):
        mails = [raw_mail(f"{n:x}", b"Subject: x\r\n\r\n" + b"y" * n, n) for n in range(150)]
        refs = await switchboard.archive_store(mails, "live")
        known = await switchboard.archive_lookup([mail.gmail_id for mail in mails] + ["abc"])
        found = [known[mail.gmail_id] for mail in mails]
        assert found == [ArchivedRef(key=ref.key, sha256=ref.sha256) for ref in refs]
        assert {(line.name, line.value) for ref in refs for line in ref.headers} == {("Subject", "x")}
        assert "abc" not in known


@pytest.mark.req("BF-3", "PL-6")
async def test_a_refused_token_says_what_to_do_and_never_itself(database: Database, tmp_path: Path) -> None:
    async with over_loopback(database, tmp_path) as (_, bench), served(bench) as url, http_client() as http:
        switchboard = SwitchboardClient(over_http(url, "prt_not-a-real-token-at-all", http), ME)
        with pytest.raises(TokenRefused, match="token create") as caught:
            await switchboard.backfill_poll()
        assert "not-a-real" not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.req("BF-3")
async def test_another_role_may_not_call_a_connectors_tools(database: Database, tmp_path: Path) -> None:
    async with over_loopback(database, tmp_path, Role.DASHBOARD) as (switchboard, _):
        with pytest.raises(NotAllowed, match="not allowed for role dashboard"):
            await switchboard.backfill_poll()


async def test_a_token_of_another_mailbox_is_not_allowed(database: Database, tmp_path: Path) -> None:
    async with over_loopback(database, tmp_path, endpoint_identity="other@example.org") as (switchboard, _):
        with pytest.raises(NotAllowed, match=r"other@example\.org"):
            await switchboard.archive_lookup(["1"])


async def test_a_bad_argument_keeps_its_field(database: Database, tmp_path: Path) -> None:
    async with over_loopback(database, tmp_path) as (switchboard, _):
        with pytest.raises(BadInput) as caught:
            await switchboard.archive_lookup(["not an id"])
        assert "gmail_ids" in caught.value.field


async def test_a_switchboard_that_is_away_can_be_asked_again(database: Database, tmp_path: Path) -> None:
    async with http_client() as http:
        switchboard = SwitchboardClient(over_http("http://127.0.0.1:1/mcp", "prt_x", http), ME)
        with pytest.raises(SwitchboardAway) as caught:
            await switchboard.backfill_poll()
        assert caught.value.retry_after is not None


async def test_a_message_larger_than_the_switchboard_takes_is_bad_input(database: Database, tmp_path: Path) -> None:
    async with over_loopback(database, tmp_path) as (switchboard, _):
        with pytest.raises(BadInput, match="bytes"):
            await switchboard.archive_store([raw_mail("1", b"x" * 3_000_000)], "live")


@pytest.mark.parametrize("url", ["ftp://x", "switchboard", "http://post.example.org/mcp", "http:///mcp"])
async def test_an_address_that_would_tell_the_token_is_refused(url: str) -> None:
    async with http_client() as http:
        with pytest.raises(BadInput, match="switchboard"):
            over_http(url, "prt_x", http)
