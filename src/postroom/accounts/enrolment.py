"""Adding, checking and removing an account. An account is stored only after it has proved
to be the one that was named."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from postroom.accounts.account import (
    Account,
    NewAccount,
    Provider,
    add_account,
    find_account,
    record_check,
    refuse_other_base,
    remove_account,
)
from postroom.accounts.switching import REMARK, folders_begun, known_by_api, read_by_imap
from postroom.db import Database, Tx
from postroom.domain.checkups import Check, CheckVerdict, Finding, first_failure
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, PostroomError
from postroom.mailboxes.credentials import (
    GrantStore,
    OAuthGrant,
    StaticCredentials,
    StoredGrant,
    credentials_for,
    imap_login_by,
    imap_login_of,
)
from postroom.mailboxes.gmail.checkup import examine
from postroom.mailboxes.gmail.methods import ProfileName, login_command
from postroom.mailboxes.imap.connection import ImapLogin
from postroom.mailboxes.imap.login import examine_imap, imap_login_command, require_login, view_gmail
from postroom.mailboxes.protocol import MessageId
from postroom.telemetry.logs import clean

NewestIds = Callable[[str], Awaitable[Sequence[MessageId]]]
"""The ids of the last few messages that the archive has of an address."""


async def none_archived(email: str) -> Sequence[MessageId]:
    return ()


class UnprovenLogin(Fatal):
    """The login could not be verified, so nothing was stored."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.text} Nothing was stored.")
        self.finding = finding


@dataclass(frozen=True)
class Enrolment:
    database: Database
    grants: GrantStore
    clock: Clock

    async def refuse_known_elsewhere(self, email: str, api_base: str, provider: Provider = Provider.GMAIL) -> None:
        """Check before a login is started: the same address at another server cannot be added."""
        known = await self.database.read(lambda tx: find_account(tx, email))
        if known is not None:
            refuse_other_base(known, api_base, provider)

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

    async def add_imap(
        self, given: ImapLogin | OAuthGrant, newest: NewestIds = none_archived
    ) -> tuple[Account, list[str]]:
        """Verify the login, by password or by browser, by logging in, then store it in place of any other; also returns
        warnings. An account that was read by Gmail's API is read by IMAP from now on, if it is the same mailbox."""
        if isinstance(given, OAuthGrant):
            refused = f"{given.client.issuer} let you in, but the server does not: was it the account of {given.email}?"
            login = imap_login_by(given, StaticCredentials(given.access_token, given.email, refused))
        else:
            login = require_login(given)
        address = str(login.address)
        await self.refuse_known_elsewhere(login.email, address, Provider.IMAP)
        findings = await examine_imap(login)
        obstacle = first_failure(findings)
        if obstacle is not None:
            raise UnprovenLogin(obstacle)
        scopes = given.scopes if isinstance(given, OAuthGrant) else frozenset[str]()
        new = NewAccount(login.email, address, scopes=scopes, provider=Provider.IMAP)
        store, remarks = await self._storing(new, login, newest)
        async with self.grants.locked(login.email, self.clock):
            former = self.grants.find(login.email), self.grants.imap.find(login.email)
            if isinstance(given, OAuthGrant):
                self.grants.save(given)
            else:
                self.grants.imap.save(login)
            try:
                account = await self.database.write(store)
            except PostroomError:
                self._put_back(login.email, *former)
                raise
            (self.grants.imap if isinstance(given, OAuthGrant) else self.grants).remove(login.email)
        return account, [*remarks, *(each.text for each in findings if each.verdict is not CheckVerdict.OK)]

    def _put_back(self, email: str, grant: StoredGrant | None, login: ImapLogin | None) -> None:
        """The account stays as it was, and so does its login."""
        if grant is None:
            self.grants.remove(email)
        else:
            self.grants.save(grant)
        if login is None:
            self.grants.imap.remove(email)
        else:
            self.grants.imap.save(login)

    async def _storing(
        self, new: NewAccount, login: ImapLogin, newest: NewestIds
    ) -> tuple[Callable[[Tx], Account], list[str]]:
        """What stores the account, and what is to be said of it."""
        before = await self.database.read(lambda tx: find_account(tx, new.email))
        if before is None or before.provider is Provider.IMAP:
            return (lambda tx: add_account(tx, new, self.clock.now())), []
        ids = await newest(before.email)
        known = await self.database.read(lambda tx: known_by_api(tx, before, ids))
        begun = folders_begun(known, await view_gmail(login, ids), login.address.host)
        return (lambda tx: read_by_imap(tx, before, new, begun, self.clock.now())), [REMARK]

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
            self.grants.imap.remove(account.email)
            await self.database.write(lambda tx: remove_account(tx, account.id, self.clock.now()))


def _login_refused(findings: Sequence[Finding]) -> bool | None:
    """None where the check failed before the login was tried."""
    found = [finding.verdict for finding in findings if finding.check is Check.AUTH]
    return found[-1] is CheckVerdict.FAILED if found else None


def log_in_again(account: Account) -> str:
    """What mends a login that has ended."""
    return f"Log in again with {login_command_of(account)}, or in the dashboard under Settings."


def login_command_of(account: Account) -> str:
    match account.provider:
        case Provider.GMAIL:
            return login_command(account.email, account.scopes)
        case Provider.IMAP:
            return imap_login_command(account.email, account.scopes)


async def examine_account(grants: GrantStore, account: Account, clock: Clock) -> list[Finding]:
    grant = grants.find(account.email)
    if account.provider is Provider.IMAP and (grant is not None or grants.imap.find(account.email) is not None):
        return await examine_imap(imap_login_of(grants, account.email, clock))
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
