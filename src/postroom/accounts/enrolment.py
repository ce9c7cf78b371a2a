"""Adding, checking and removing an account. An account is stored only after it has proved to be the one that was named.

One that was read by Gmail's API can be read by Gmail's IMAP server from then on (IM-6). It stays one account: its
messages have the same ids either way, and each label keeps the id that the API gave it, because its folder begins with
that id. So the archive, rules, actions and their undo go on as they are. The cursor into the API's history means
nothing to IMAP: the next look finds it too old, and compares what came since. Refused wherever that would not hold: at
another server, for a mailbox that does not show all of its mail and labels by IMAP, and while mail is being sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select, update

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
from postroom.accounts.history import end_readers
from postroom.accounts.mailbox_state import labels_of
from postroom.accounts.places import begin_places
from postroom.db import Database, Tx
from postroom.db.tables.accounts import accounts, sync_labels
from postroom.db.tables.triage import actions, outbound
from postroom.domain.checkups import Check, CheckVerdict, Finding, first_failure
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Fatal, PostroomError, Retryable
from postroom.mailboxes import credentials
from postroom.mailboxes.gmail.checkup import examine
from postroom.mailboxes.gmail.methods import ProfileName, login_command
from postroom.mailboxes.imap.connection import ImapLogin
from postroom.mailboxes.imap.login import GmailView, examine_imap, imap_login_command, require_login, view_gmail
from postroom.mailboxes.imap.places import FolderRole, FolderState
from postroom.mailboxes.protocol import LabelId, MessageId
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
    grants: credentials.GrantStore
    clock: Clock

    async def refuse_known_elsewhere(self, email: str, api_base: str, provider: Provider = Provider.GMAIL) -> None:
        """Check before a login is started: the same address at another server cannot be added."""
        known = await self.database.read(lambda tx: find_account(tx, email))
        if known is not None:
            refuse_other_base(known, api_base, provider)

    async def add(self, grant: credentials.StoredGrant, quota: ProfileName | None = None) -> tuple[Account, list[str]]:
        """Verify the login with a call for the profile, then store it; also returns warnings."""
        await self.refuse_known_elsewhere(grant.email, grant.api_base)
        findings = await examine(grant, credentials.StaticCredentials(grant.access_token, grant.email), self.clock)
        obstacle = first_failure(finding for finding in findings if finding.check is not Check.CLOCK)
        if obstacle is not None:
            raise Fatal(f"{obstacle.text} Nothing was stored.")
        scopes = grant.scopes if isinstance(grant, credentials.OAuthGrant) else frozenset[str]()
        new = NewAccount(grant.email, grant.api_base, quota, scopes)
        async with self.grants.locked(grant.email, self.clock):
            self.grants.save(grant)
            account = await self.database.write(lambda tx: add_account(tx, new, self.clock.now()))
        return account, [finding.text for finding in findings if finding.verdict is not CheckVerdict.OK]

    async def add_imap(
        self, given: ImapLogin | credentials.OAuthGrant, newest: NewestIds = none_archived
    ) -> tuple[Account, list[str]]:
        """Verify the login, by password or by browser, by logging in, then store it in place of any other; also returns
        warnings. An account that was read by Gmail's API is read by IMAP from now on, if it is the same mailbox."""
        if isinstance(given, credentials.OAuthGrant):
            refused = f"{given.client.issuer} let you in, but the server does not: was it the account of {given.email}?"
            login = credentials.imap_login_by(
                given, credentials.StaticCredentials(given.access_token, given.email, refused)
            )
        else:
            login = require_login(given)
        address = str(login.address)
        await self.refuse_known_elsewhere(login.email, address, Provider.IMAP)
        findings = await examine_imap(login)
        obstacle = first_failure(findings)
        if obstacle is not None:
            raise UnprovenLogin(obstacle)
        scopes = given.scopes if isinstance(given, credentials.OAuthGrant) else frozenset[str]()
        new = NewAccount(login.email, address, scopes=scopes, provider=Provider.IMAP)
        store, remarks = await self._storing(new, login, newest)
        async with self.grants.locked(login.email, self.clock):
            former = self.grants.find(login.email), self.grants.imap.find(login.email)
            if isinstance(given, credentials.OAuthGrant):
                self.grants.save(given)
            else:
                self.grants.imap.save(login)
            try:
                account = await self.database.write(store)
            except PostroomError:
                self._put_back(login.email, *former)
                raise
            (self.grants.imap if isinstance(given, credentials.OAuthGrant) else self.grants).remove(login.email)
        return account, [*remarks, *(each.text for each in findings if each.verdict is not CheckVerdict.OK)]

    def _put_back(self, email: str, grant: credentials.StoredGrant | None, login: ImapLogin | None) -> None:
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


async def examine_account(grants: credentials.GrantStore, account: Account, clock: Clock) -> list[Finding]:
    grant = grants.find(account.email)
    if account.provider is Provider.IMAP and (grant is not None or grants.imap.find(account.email) is not None):
        return await examine_imap(credentials.imap_login_of(grants, account.email, clock))
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
    return await examine(grant, credentials.credentials_for(grants, account.email, clock), clock)


_SHOWN = {FolderRole.ALL: "All Mail", FolderRole.SPAM: "Spam", FolderRole.TRASH: "Bin"}
_BEING_SENT = ("composing", "drafted", "sending")
_MOST_NAMED = 5
REMARK = (
    "It was read by Gmail's API and is read by IMAP from now on. Its mail, labels, rules and actions stay; Gmail's "
    "categories and conversations are not shown by IMAP, so rules that look at a category are switched off."
)


@dataclass(frozen=True, slots=True)
class KnownByApi:
    """What is known of an account that was read by the API."""

    account: Account
    labels: Mapping[LabelId, str]
    """Its owner's own."""
    newest: Sequence[MessageId]
    """The last few messages in the archive."""


def known_by_api(tx: Tx, account: Account, newest: Sequence[MessageId]) -> KnownByApi:
    """Of two ids with one name, the one that the last listing of labels had counts."""
    archived = select(sync_labels.c.label_id, sync_labels.c.name).where(sync_labels.c.account_id == account.id)
    found = [(name, label_id) for label_id, name in tx.execute(archived)]
    found += [(label.name, label.label_id) for label in labels_of(tx, account.id) if not label.is_system]
    by_name = {name.casefold(): (label_id, name) for name, label_id in found}
    return KnownByApi(account, dict(by_name.values()), newest)


def folders_begun(known: KnownByApi, view: GmailView | None, server: str) -> list[FolderState]:
    """The folders of the known labels, each with the label's id. Raises BadInput where the mailbox, as IMAP shows it,
    is not the one that is known."""
    email = known.account.email
    if view is None:
        raise BadInput(
            "host",
            f"{email} is read by Gmail's API, and {server} is not Gmail's own server: all its mail would come a second "
            "time, with other ids; use Gmail's server, or another home folder (POSTROOM_HOME)",
        )
    hidden = [name for role, name in _SHOWN.items() if role not in view.roles]
    if hidden:
        raise BadInput(
            "host",
            f"Gmail does not show {' and '.join(hidden)} of {email} by IMAP, and that mail would count as deleted; "
            "tick *Show in IMAP* beside it in Gmail's settings under *Labels*, and try again",
        )
    if known.newest and not view.held:
        raise BadInput(
            "email",
            f"none of the last {len(known.newest)} messages that are known of {email} is in this mailbox; it is "
            "another one",
        )
    lacking = sorted(name for name in known.labels.values() if name.casefold() not in view.labels)
    if lacking:
        more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
        raise BadInput(
            "host",
            f"Gmail does not show the labels {', '.join(lacking[:_MOST_NAMED])}{more} of {email} by IMAP; tick *Show "
            "in IMAP* beside them in Gmail's settings under *Labels*. If they were deleted or renamed there since, run "
            f"`postroom account labels {email} --sync` first",
        )
    return [replace(view.labels[name.casefold()], id=label_id) for label_id, name in known.labels.items()]


def read_by_imap(tx: Tx, known: Account, new: NewAccount, begun: Sequence[FolderState], now: datetime) -> Account:
    """Change the account, in one transaction. Raises Retryable while mail is being sent, from a draft that only the API
    knows."""
    _refuse_while_sending(tx, known)
    named = {"provider": Provider.IMAP, "api_base": new.api_base, "quota_profile": None}
    by_api = (accounts.c.id == known.id) & (accounts.c.provider == Provider.GMAIL)
    if tx.execute(update(accounts).where(by_api).values(**named)).rowcount:  # else another process was first
        begin_places(tx, known.id, begun)
        end_readers(tx, known.id, now)
    return add_account(tx, new, now)


def _refuse_while_sending(tx: Tx, account: Account) -> None:
    query = select(outbound.c.action_id).join(actions, actions.c.id == outbound.c.action_id)
    sending = query.where(actions.c.account_id == account.id, outbound.c.state.in_(_BEING_SENT)).limit(1)
    if tx.execute(sending).first() is not None:
        raise Retryable(f"Mail of {account.email} is being sent by Gmail's API. Try again when it is sent.")
