"""Clients of an account, wired as the product wires them."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.accounts.access import GmailAccess
from postroom.accounts.enrolment import Enrolment
from postroom.db import Database
from postroom.domain.clock import SystemClock
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.mailboxes.gmail.methods import ProfileName
from postroom.mailboxes.ports import PriorityLane
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import running_sim
from postroom.vault import Vault
from tests.support.gmail_sim import units_in_use

ME = "me@example.org"


@pytest.mark.req("SY-3")
async def test_all_processes_spend_from_the_accounts_one_allowance(database: Database, tmp_path: Path) -> None:
    """Two `GmailAccess` stand for two processes: what both spend is in one ledger."""
    clock, grants = SystemClock(), GrantStore(Vault(tmp_path))
    async with running_sim(GeneratedMailbox(50, 1, ME), quota="2026") as sim:
        grant = StaticGrant(email=ME, api_base=sim.url, access_token=sim.token)
        account, _ = await Enrolment(database, grants, clock).add(grant, ProfileName.MAY_2026)
        for access in (GmailAccess(database, grants, clock), GmailAccess(database, grants, clock)):
            async with (
                access.client(account, PriorityLane.USER_ACTION) as client,
                access.client(account, PriorityLane.SYNC) as other,
            ):
                assert (await client.get_profile()).email == ME
                assert (await other.get_profile()).email == ME
        assert await database.read(lambda tx: units_in_use(tx, account.id, clock.now())) >= 4
        assert sim.control.state().throttled == 0


async def test_an_account_of_unknown_price_list_is_not_metered(database: Database, tmp_path: Path) -> None:
    clock, grants = SystemClock(), GrantStore(Vault(tmp_path))
    async with running_sim(GeneratedMailbox(50, 1, ME)) as sim:
        grant = StaticGrant(email=ME, api_base=sim.url, access_token=sim.token)
        account, _ = await Enrolment(database, grants, clock).add(grant)
        async with GmailAccess(database, grants, clock).client(account, PriorityLane.LIVE) as client:
            assert (await client.get_profile()).messages_total == 50
        assert await database.read(lambda tx: units_in_use(tx, account.id, clock.now())) == 0
