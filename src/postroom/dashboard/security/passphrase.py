"""The passphrase that opens the dashboard, the one-time links that set it, and how often it may be guessed.

Only the scrypt hash is stored, with its parameters. A link is printed in the terminal of the host, works once and
for an hour; it is how the owner gets in for the first time, or after forgetting the passphrase.

An attempt is counted before it is checked, so that parallel guesses count too. Each address has a few guesses; a
browser that was logged in before is counted by its device cookie, so that strangers cannot lock its owner out; many
guesses from many addresses delay every other stranger. The audit log gets at most one entry a minute for an address,
with a count, never with the guess.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, select, update

from postroom import audit
from postroom.app.installation import App
from postroom.audit import Actor
from postroom.dashboard.security import sessions as secrets
from postroom.dashboard.security.sessions import end_all_sessions
from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.access import dashboard_attempts, dashboard_links, dashboard_passphrases
from postroom.domain.clock import Backoff, Clock
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.domain.ids import new_id
from postroom.telemetry import logs
from postroom.webserver.limits import address_block

OWNER = "owner"
SHORTEST, LONGEST = 12, 1_000

_LOG_N, _R, _P = 15, 8, 1
_MEMORY = 64 * 1024 * 1024
_SALT_BYTES, _HASH_BYTES = 16, 32


class PassphraseHasher:
    """scrypt on threads, a few at a time: each takes 32 MB and 0.1 s, and an unauthenticated visitor can request it."""

    def __init__(self, at_once: int = 2) -> None:
        self._places = asyncio.Semaphore(at_once)

    async def make(self, passphrase: str) -> str:
        async with self._places:
            return await asyncio.to_thread(_made, passphrase)

    async def matches(self, passphrase: str, stored: str) -> bool:
        async with self._places:
            return await asyncio.to_thread(_matches, passphrase, stored)


def check_passphrase(passphrase: str, repeated: str) -> None:
    """Length is what protects; any characters will do."""
    if len(_normal(passphrase)) < SHORTEST:
        raise BadInput("passphrase", f"is too short: use at least {SHORTEST} characters, such as a sentence")
    if len(passphrase) > LONGEST:
        raise BadInput("passphrase", f"is too long: the maximum is {LONGEST} characters")
    if len(set(passphrase)) < 5:
        raise BadInput("passphrase", "has too few different characters")
    if passphrase != repeated:
        raise BadInput("repeated", "is not the same as the passphrase")


def stored_hash(tx: Tx) -> str | None:
    return tx.execute(select(dashboard_passphrases.c.hash).where(dashboard_passphrases.c.name == OWNER)).scalar()


def require_unchanged(tx: Tx, proven: str, field: str) -> None:
    """Checks that the proven passphrase is still the current one; a concurrent change waits for this transaction."""
    if (
        tx.execute(
            tx.locking(select(dashboard_passphrases.c.hash).where(dashboard_passphrases.c.name == OWNER))
        ).scalar()
        != proven
    ):
        raise BadInput(field, "was changed in the meantime")


def set_hash(tx: Tx, made: str, who: Actor, now: datetime, *, but: str | None = None) -> int:
    """Sets the passphrase and ends all sessions except `but`; returns how many were ended."""
    values = {"hash": made, "changed_at": now}
    row = insert(tx, dashboard_passphrases).values(name=OWNER, **values)
    tx.execute(row.on_conflict_do_update(index_elements=[dashboard_passphrases.c.name], set_=values))
    ended = end_all_sessions(tx, now, but=but)
    audit.record(tx, who, "dashboard.passphrase", ("dashboard", OWNER), now, after={"logins_ended": ended})
    return ended


def _made(passphrase: str) -> str:
    salt = os.urandom(_SALT_BYTES)
    parts = (_LOG_N, _R, _P, _text(salt), _text(_scrypt(passphrase, salt, _LOG_N, _R, _P)))
    return "$".join(("scrypt", *map(str, parts)))


def _matches(passphrase: str, stored: str) -> bool:
    try:
        scheme, log_n, r, p, salt, wanted = stored.split("$")
        if scheme != "scrypt":
            raise ValueError(scheme)
        made = _scrypt(passphrase, base64.b64decode(salt), int(log_n), int(r), int(p))
        return hmac.compare_digest(made, base64.b64decode(wanted))
    except (ValueError, binascii.Error) as error:
        raise Fatal("The stored passphrase cannot be read; set a new one with `postroom token link`.") from error


def _scrypt(passphrase: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    secret = _normal(passphrase).encode()
    return hashlib.scrypt(secret, salt=salt, n=1 << log_n, r=r, p=p, maxmem=_MEMORY, dklen=_HASH_BYTES)


def _normal(passphrase: str) -> str:
    """Keyboards encode the same letter in different ways."""
    return unicodedata.normalize("NFC", passphrase)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


LINK_PATH = "/welcome"
LINK_LIFE = timedelta(hours=1)


class LinkSpent(NotAllowed):
    """This link has been used or has expired. `postroom token link` prints a new one."""


def make_link(tx: Tx, who: Actor, now: datetime) -> str:
    """The secret of a new link; earlier unused links become invalid."""
    tx.lock_table(dashboard_links)
    tx.execute(delete(dashboard_links).where(dashboard_links.c.used_at.is_(None)))
    secret, link_id = secrets.fresh_secret(secrets.LINK), new_id()
    tx.execute(
        dashboard_links.insert().values(
            id=link_id, sha256=secrets.secret_digest(secret), created_at=now, expires_at=now + LINK_LIFE
        )
    )
    audit.record(tx, who, "dashboard.link", ("dashboard", link_id), now)
    return secret


def is_good_link(tx: Tx, secret: str, now: datetime) -> bool:
    if not secrets.has_secret_form(secret, secrets.LINK):
        return False
    query = select(dashboard_links.c.id).where(
        dashboard_links.c.sha256 == secrets.secret_digest(secret), *_unspent(now)
    )
    return tx.execute(query).first() is not None


def spend_link(tx: Tx, secret: str, now: datetime) -> None:
    """Of several concurrent uses, one succeeds."""
    matches = dashboard_links.c.sha256 == secrets.secret_digest(secret)
    if tx.execute(update(dashboard_links).where(matches, *_unspent(now)).values(used_at=now)).rowcount != 1:
        raise LinkSpent()


def link_url(base: str, secret: str) -> str:
    return f"{base.rstrip('/')}{LINK_PATH}?link={secret}"


def _unspent(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return dashboard_links.c.used_at.is_(None), dashboard_links.c.expires_at > now


async def fresh_link(app: App, served_at: str, who: Actor) -> str:
    """A link that sets the passphrase, with the public address of the dashboard."""
    secret = await app.database.write(lambda tx: make_link(tx, who, app.clock.now()))
    return link_url(app.settings.dashboard.url or served_at, secret)


async def first_link(app: App, served_at: str, who: Actor) -> str | None:
    """The same until a passphrase is set; then None."""
    if await app.database.read(stored_hash) is not None:
        return None
    return await fresh_link(app, served_at, who)


WINDOW = timedelta(minutes=15)
FROM_AN_ADDRESS = 5
"""Also from a remembered browser."""
BEFORE_SLOWING = 50
_SLOWING = Backoff(0.25, 8.0)
_DOUBLED_EVERY = 10
_SLOWED_AT_ONCE = 32


class TooManyAttempts(Retryable):
    """Too many wrong passphrases. Wait, or create a link with `postroom token link`."""


@dataclass(frozen=True, slots=True)
class Guesser:
    """The source of an attempt: an address, or a browser that was logged in before."""

    address: str
    device: str | None = None

    @property
    def key(self) -> str:
        return f"device {self.device}" if self.device else address_block(self.address)


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    guesser: Guesser
    delay_s: float
    """How long its reply is delayed."""


def admit_attempt(tx: Tx, guesser: Guesser, now: datetime) -> LoginAttempt:
    """Count an attempt; forgiven later if the passphrase is right."""
    tx.execute(tx.locking(select(dashboard_passphrases.c.name).where(dashboard_passphrases.c.name == OWNER)))
    tx.execute(delete(dashboard_attempts).where(dashboard_attempts.c.at <= now - WINDOW))
    own = select(func.count(), func.min(dashboard_attempts.c.at)).where(dashboard_attempts.c.address == guesser.key)
    made, oldest = tx.execute(own).one()
    if made >= FROM_AN_ADDRESS:
        raise TooManyAttempts(retry_after=max(oldest + WINDOW - now, timedelta(seconds=1)))
    together = tx.execute(select(func.count()).select_from(dashboard_attempts)).scalar_one()
    tx.execute(dashboard_attempts.insert().values(id=new_id(), address=guesser.key, at=now))
    return LoginAttempt(guesser, 0.0 if guesser.device else delay_after(together))


def delay_after(attempts: int) -> float:
    """The delay in seconds of a stranger's attempt after this many wrong ones from anywhere."""
    if attempts < BEFORE_SLOWING:
        return 0.0
    return _SLOWING.delay_s(1 + (attempts - BEFORE_SLOWING) / _DOUBLED_EVERY)


def forgive_attempts(tx: Tx, guesser: Guesser) -> None:
    """Removes the attempts of this browser and its address."""
    tx.execute(
        delete(dashboard_attempts).where(
            dashboard_attempts.c.address.in_([guesser.key, address_block(guesser.address)])
        )
    )


class LoginDelay:
    """Delays attempts, a bounded number at a time."""

    def __init__(self) -> None:
        self._places = _SLOWED_AT_ONCE

    async def hold(self, attempt: LoginAttempt) -> None:
        if not attempt.delay_s:
            return
        if not self._places:
            raise TooManyAttempts(retry_after=timedelta(seconds=_SLOWING.longest_s))
        self._places -= 1
        try:
            await asyncio.sleep(attempt.delay_s)
        finally:
            self._places += 1


log = logs.get(__name__)

FAILED_LOGIN = "dashboard.login_failed"
RECORD_EVERY = timedelta(minutes=1)
OTHER_ADDRESSES = "other addresses"
"""Groups all further addresses once 60 are counted separately."""

_MOST_ADDRESSES = 60
_LOOK_EVERY_S = 20.0


@dataclass
class _Failures:
    count: int = 0
    refused: int = 0
    """Those rejected unchecked because there were too many."""
    recorded_at: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        return self.count > 0 and (self.recorded_at is None or now - self.recorded_at >= RECORD_EVERY)

    def is_over(self, now: datetime) -> bool:
        return self.count == 0 and self.recorded_at is not None and now - self.recorded_at >= RECORD_EVERY


class FailedLogins:
    """The first failure of an address is recorded at once; those of the minute after it together."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    async def note(self, address: str, *, is_refused: bool = False) -> None:
        if address not in self._failures and len(self._failures) >= _MOST_ADDRESSES:
            address = OTHER_ADDRESSES
        failures = self._failures.setdefault(address, _Failures())
        failures.count += 1
        failures.refused += is_refused
        await self.record_due()

    async def record_due(self) -> None:
        now = self._clock.now()
        await self._record([address for address, failures in self._failures.items() if failures.is_due(now)], now)
        for address in [address for address, failures in self._failures.items() if failures.is_over(now)]:
            del self._failures[address]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Records pending failures regularly, and the rest at the end."""
        task = asyncio.create_task(self._keep_recording(), name="failed logins")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            left = [address for address, failures in self._failures.items() if failures.count]
            await self._record(left, self._clock.now())

    async def _keep_recording(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self.record_due()

    async def _record(self, addresses: list[str], now: datetime) -> None:
        taken: dict[str, dict[str, str | int]] = {}
        for address in addresses:
            failures = self._failures[address]
            taken[address] = {"address": address, "count": failures.count, "refused": failures.refused}
            self._failures[address] = _Failures(recorded_at=now)
        if not taken:
            return

        def write(tx: Tx) -> None:
            for address, counts in taken.items():
                audit.record(tx, Actor("stranger", address), FAILED_LOGIN, ("dashboard", "login"), now, after=counts)

        try:
            await self._database.write(write)
        except PostroomError as error:
            log.error("dashboard.failed_logins_not_recorded", failures=list(taken.values()), error=error.message)
