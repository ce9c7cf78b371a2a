"""Adding, checking and removing an account. An account is stored only after it has proved
to be the one that was named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.accounts.account import (
    Account,
    NewAccount,
    add_account,
    find_account,
    record_check,
    refuse_other_base,
    remove_account,
)
from postroom.db import Database
from postroom.domain.checkups import Check, CheckVerdict, Finding, first_failure
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal
from postroom.mailboxes.gmail.checkup import examine
from postroom.mailboxes.gmail.credentials import GrantStore, OAuthGrant, StaticCredentials, StoredGrant, credentials_for
from postroom.mailboxes.gmail.permissions import login_command
from postroom.mailboxes.gmail.quota import ProfileName
from postroom.telemetry.logs import clean


@dataclass(frozen=True)
class Enrolment:
    database: Database
    grants: GrantStore
    clock: Clock

    async def refuse_known_elsewhere(self, email: str, api_base: str) -> None:
        """Check before a login is started: the same address at another server cannot be added."""
        known = await self.database.read(lambda tx: find_account(tx, email))
        if known is not None:
            refuse_other_base(known, api_base)

    async def add(self, grant: StoredGrant, quota: ProfileName | None = None) -> tuple[Account, list[str]]:
        """Verify the login with a call for the profile, then store it; also returns warnings."""
        await self.refuse_known_elsewhere(grant.email, grant.api_base)
        findings = await examine(grant, StaticCredentials(grant.access_token, grant.email), self.clock)
        obstacle = first_failure(finding for finding in findings if finding.check is not Check.CLOCK)
        if obstacle is not None:
            raise Fatal(f"{obstacle.text} Nothing was stored.")
        scopes = grant.scopes if isinstance(grant, OAuthGrant) else frozenset[str]()
        new = NewAccount(grant.email, grant.api_base, quota, scopes)
        async with self.grants.locked(grant.email, self.clock):
            self.grants.save(grant)
            account = await self.database.write(lambda tx: add_account(tx, new, self.clock.now()))
        return account, [finding.text for finding in findings if finding.verdict is not CheckVerdict.OK]

    async def check(self, account: Account) -> list[Finding]:
        """Examine the account and record the result with it."""
        findings = await self.examine(account)
        failure = first_failure(findings)
        error = None if failure is None else clean(failure.text)
        refused = _login_refused(findings)
        now = self.clock.now()
        await self.database.write(lambda tx: record_check(tx, account.id, now, error, login_refused=refused))
        return findings

    async def examine(self, account: Account) -> list[Finding]:
        """The same without recording anything."""
        return await examine_account(self.grants, account, self.clock)

    async def remove(self, account: Account) -> None:
        """Removes the tokens first: if this stops half-way, the account is still listed and can be removed again."""
        async with self.grants.locked(account.email, self.clock):
            self.grants.remove(account.email)
            await self.database.write(lambda tx: remove_account(tx, account.id, self.clock.now()))


def _login_refused(findings: Sequence[Finding]) -> bool | None:
    """None where the check failed before the login was tried."""
    found = [finding.verdict for finding in findings if finding.check is Check.AUTH]
    return found[-1] is CheckVerdict.FAILED if found else None


def log_in_again(account: Account) -> str:
    """What mends a login that has ended."""
    return f"Log in again with {login_command(account.email, account.scopes)}, or in the dashboard under Settings."


async def examine_account(grants: GrantStore, account: Account, clock: Clock) -> list[Finding]:
    grant = grants.find(account.email)
    if grant is None:
        return [
            Finding(
                Check.AUTH,
                CheckVerdict.FAILED,
                account.email,
                f"The vault holds no login for {account.email}.",
                log_in_again(account),
            )
        ]
    return await examine(grant, credentials_for(grants, account.email, clock), clock)
