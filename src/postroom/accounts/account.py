"""Accounts in the control database. Their tokens are in the vault, never here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, delete, func, or_, select, update

from postroom.db import Prepared, Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.accounts import archived_mailboxes as archived
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id, normal_email
from postroom.mailboxes.gmail.methods import ProfileName

_LONGEST_ERROR = 1_000
_LONGEST_NAME = 200


class Provider(StrEnum):
    GMAIL = "gmail"
    IMAP = "imap"


class AccountStatus(StrEnum):
    ACTIVE = "active"
    FAILING = "failing"
    """The last check did not pass; `last_error` says why."""
    LOGIN_ENDED = "login_ended"
    """The provider refuses the login. Its jobs wait for a new one; `last_error` says how to log in."""
    REMOVED = "removed"
    """Its tokens are gone; its mail and history stay, and adding it again takes them up."""


@dataclass(frozen=True, slots=True)
class Account:
    id: str
    provider: Provider
    email: str
    api_base: str
    quota: ProfileName | None
    scopes: frozenset[str]
    status: AccountStatus
    created_at: datetime
    updated_at: datetime
    last_checked_at: datetime | None
    last_error: str | None
    display_name: str | None = None
    """Its owner's name, in mail that is sent."""


@dataclass(frozen=True, slots=True)
class NewAccount:
    """What is known of an account once its login has been verified."""

    email: str
    api_base: str
    quota: ProfileName | None = None
    scopes: frozenset[str] = frozenset()
    provider: Provider = Provider.GMAIL


@dataclass(frozen=True, slots=True)
class ArchivedMailbox:
    """A mailbox that has mail in the archive and no login: it never was an account here, or was removed."""

    id: str
    email: str


def add_account(tx: Tx, new: NewAccount, now: datetime) -> Account:
    """Add an account, or renew the login of one that is known: it keeps its id, and so its mail. An account for an
    archived mailbox takes over the mailbox's id.
    """
    email = normal_email(new.email)
    tx.lock_table(accounts)
    known = _find(tx, email)
    if known is not None:
        refuse_other_base(known, new.api_base, new.provider)
    values = {
        "scopes": " ".join(sorted(new.scopes)),
        "status": AccountStatus.ACTIVE,
        "updated_at": now,
        "last_checked_at": now,
        "last_error": None,
        "login_ended_at": None,
    }
    if known is None:
        taken_over = tx.execute(delete(archived).where(archived.c.email == email).returning(archived.c.id)).scalar()
        identity = {"id": taken_over or new_id(), "provider": new.provider, "email": email, "api_base": new.api_base}
        tx.execute(accounts.insert().values(**identity, **values, quota_profile=new.quota, created_at=now))
    else:
        quota = known.quota if new.quota is None else new.quota
        tx.execute(update(accounts).where(accounts.c.id == known.id).values(**values, quota_profile=quota))
    return get_account(tx, email)


def refuse_other_base(known: Account, api_base: str, provider: Provider = Provider.GMAIL) -> None:
    """Raise if the account is known with another provider or server: the same address there is another mailbox. One of
    Gmail's API may be read by IMAP from now on, where it proves to be the same (`accounts.switching`)."""
    if known.provider is Provider.GMAIL and provider is Provider.IMAP:
        return
    if known.provider is not provider:
        raise BadInput(
            "email",
            f"{known.email} is read by IMAP, and labels made since are known by the ids of its folders, which Gmail's "
            "API does not know; log in again with `postroom account add imap`, or use another home folder "
            "(POSTROOM_HOME)",
        )
    if known.api_base != api_base:
        raise BadInput(
            "api-base" if provider is Provider.GMAIL else "host",
            f"{known.email} is known with {known.api_base}, and mail of two servers is not mixed; "
            "use another home folder (POSTROOM_HOME) for the other server",
        )


def list_accounts(tx: Tx, *, with_removed: bool = False) -> list[Account]:
    """In the order in which they were added."""
    query = select(accounts).order_by(accounts.c.created_at, accounts.c.id)
    found = tx.shared("accounts", lambda: [_account(row) for row in tx.execute(query)])
    return [account for account in found if with_removed or account.status is not AccountStatus.REMOVED]


def find_account(tx: Tx, email: str) -> Account | None:
    """The account with this address, whatever its provider: an address is one account."""
    return _find(tx, normal_email(email))


def get_account(tx: Tx, email: str) -> Account:
    found = find_account(tx, email)
    if found is None or found.status is AccountStatus.REMOVED:
        raise NotFound("account", f"there is no account {email}; `postroom account list` shows those there are")
    return found


def find_mailbox(tx: Tx, email: str) -> Account | ArchivedMailbox | None:
    """The account with this address, or the mailbox without a login."""
    account = find_account(tx, email)
    if account is not None:
        return ArchivedMailbox(account.id, account.email) if account.status is AccountStatus.REMOVED else account
    row = tx.execute(select(archived).where(archived.c.email == normal_email(email))).first()
    return None if row is None else ArchivedMailbox(row.id, row.email)


def mailbox_id(tx: Tx, email: str, now: datetime) -> str:
    """The id of the account or mailbox with this address. An address that is not known becomes an archived mailbox."""
    known = find_mailbox(tx, email)
    if known is None:
        tx.lock_table(accounts)  # an account that is added at this moment takes over the id, or is found
        known = find_mailbox(tx, email)
    if known is not None:
        return known.id
    made = new_id()
    tx.execute(archived.insert().values(id=made, email=normal_email(email), created_at=now))
    return made


def list_archived_mailboxes(tx: Tx) -> list[ArchivedMailbox]:
    """By address."""
    removed = select(accounts.c.id, accounts.c.email).where(accounts.c.status == AccountStatus.REMOVED)
    query = removed.union(select(archived.c.id, archived.c.email)).order_by("email")
    return [ArchivedMailbox(row.id, row.email) for row in tx.execute(query)]


_BY_ID = Prepared(select(accounts).where(accounts.c.id == bindparam("account")))


def account_with_id(tx: Tx, account_id: str) -> Account | None:
    rows = tx.run(_BY_ID, {"account": account_id})
    return _account(rows[0]) if rows else None


def record_check(
    tx: Tx, account_id: str, now: datetime, error: str | None, *, login_refused: bool | None = False
) -> None:
    """Record the result of a check; `error` is None if it passed. `login_refused` is None where the check did not get
    as far as the login."""
    status = AccountStatus.ACTIVE if error is None else AccountStatus.FAILING
    text = None if error is None else error[:_LONGEST_ERROR]
    values: dict[str, Any] = {"status": status, "last_error": text, "last_checked_at": now, "updated_at": now}
    if login_refused is not None:
        values["login_ended_at"] = func.coalesce(accounts.c.login_ended_at, now) if login_refused else None
    tx.execute(update(accounts).where(_in_use(account_id)).values(**values))


def end_login(tx: Tx, account: Account, now: datetime, reason: str) -> bool:
    """Record that the provider refuses the login. False, and nothing done, if the login was renewed after `account` was
    read."""
    same_login = accounts.c.updated_at == account.updated_at
    values = {"login_ended_at": now, "last_error": reason[:_LONGEST_ERROR], "last_checked_at": now, "updated_at": now}
    return tx.execute(update(accounts).where(_in_use(account.id), same_login).values(**values)).rowcount > 0


@dataclass(frozen=True, slots=True)
class LoginNotice:
    """An account of which is to be said that its login has ended, or that it is good again."""

    account: Account
    ended_at: datetime | None
    message_id: str | None
    """What says so far that it has ended."""


def due_login_notices(tx: Tx) -> list[LoginNotice]:
    unsaid = accounts.c.login_ended_at.is_not(None) & accounts.c.login_notice.is_(None)
    outdated = accounts.c.login_ended_at.is_(None) & accounts.c.login_notice.is_not(None)
    rows = tx.execute(select(accounts).where(or_(unsaid, outdated)).order_by(accounts.c.email))
    return [LoginNotice(_account(row), row.login_ended_at, row.login_notice) for row in rows]


def keep_login_notice(tx: Tx, account_id: str, message_id: str | None) -> None:
    # Not `updated_at`, by which a login is recognised.
    tx.execute(update(accounts).where(accounts.c.id == account_id).values(login_notice=message_id))


def _in_use(account_id: str) -> ColumnElement[bool]:
    return and_(accounts.c.id == account_id, accounts.c.status != AccountStatus.REMOVED)


def name_owner(tx: Tx, account_id: str, name: str | None, now: datetime) -> None:
    """Set the name that stands in the From of mail sent from this account; None: its address alone stands there."""
    if name is not None and not (0 < len(name) <= _LONGEST_NAME and name.isprintable() and name == name.strip()):
        raise BadInput("name", f"has 1 to {_LONGEST_NAME} printable characters, and no space at its ends")
    # Not `updated_at`, by which a login is recognised.
    tx.execute(update(accounts).where(_in_use(account_id)).values(display_name=name))


def remove_account(tx: Tx, account_id: str, now: datetime) -> None:
    """Mark the account as removed. Its mail and its row stay."""
    values = {
        "status": AccountStatus.REMOVED,
        "scopes": "",
        "last_error": None,
        "login_ended_at": None,
        "updated_at": now,
    }
    tx.execute(update(accounts).where(accounts.c.id == account_id).values(**values))


_BY_EMAIL = Prepared(select(accounts).where(accounts.c.email == bindparam("email")))


def _find(tx: Tx, email: str) -> Account | None:
    rows = tx.run(_BY_EMAIL, {"email": email})
    return _account(rows[0]) if rows else None


def _account(row: Row[Any]) -> Account:
    return Account(
        id=row.id,
        provider=Provider(row.provider),
        email=row.email,
        api_base=row.api_base,
        quota=None if row.quota_profile is None else ProfileName(row.quota_profile),
        scopes=frozenset(row.scopes.split()),
        status=_status(row),
        created_at=row.created_at,
        updated_at=row.updated_at,
        last_checked_at=row.last_checked_at,
        last_error=row.last_error,
        display_name=row.display_name,
    )


def _status(row: Row[Any]) -> AccountStatus:
    stored = AccountStatus(row.status)
    ended = row.login_ended_at is not None and stored is not AccountStatus.REMOVED
    return AccountStatus.LOGIN_ENDED if ended else stored
