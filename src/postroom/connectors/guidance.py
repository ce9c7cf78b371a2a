"""What the Switchboard gives a connector to decide by: tier policy, categories and contacts. Heartbeats, which also say
how the connector is doing, renew them; passes wait for the first answer.

The contacts are kept in a file. A copy that is missing, damaged or too old is not used, and metrics show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from postroom.connectors import metrics
from postroom.connectors.priority import contact_form
from postroom.connectors.state_files import read_json, write_json
from postroom.connectors.switchboard_client import SwitchboardClient
from postroom.domain.clock import Clock, require_utc
from postroom.domain.errors import BadInput, PostroomError
from postroom.mail.addresses import parse_addresses
from postroom.mail.categories import Categories, parse_categories, shipped
from postroom.mail.headers import Headers
from postroom.mail.tier_policy import SEED, TierPolicy, parse_policy
from postroom.telemetry import logs

CONTACTS_FILE = "contacts.json"
MAX_AGE = timedelta(minutes=60)
_TOLERATED_SKEW = timedelta(minutes=5)
"""A copy from the future means that a clock is wrong; this much is tolerated."""
log = logs.get(__name__)


class CacheState(StrEnum):
    FRESH = "fresh"
    MISSING = "missing"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Contacts:
    """What rule 1 may use now. Empty unless fresh."""

    addresses: frozenset[str]
    state: CacheState
    generated_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Copy:
    generated_at: datetime
    addresses: frozenset[str]
    others: frozenset[str] = frozenset()
    """Contacts that raise no tier."""


class ContactCache:
    """One a connector; reads its file once and keeps the set in memory."""

    def __init__(self, folder: Path, clock: Clock, max_age: timedelta = MAX_AGE) -> None:
        self._path = folder / CONTACTS_FILE
        self._clock = clock
        self._max_age = max_age
        self._copy = _read(self._path)
        self._reported: CacheState | None = None

    @property
    def generated_at(self) -> datetime | None:
        return None if self._copy is None else self._copy.generated_at

    @property
    def is_from_the_future(self) -> bool:
        """Made with a wrong clock: any other copy is better."""
        return self._copy is not None and self._copy.generated_at > self._clock.now() + _TOLERATED_SKEW

    @property
    def last_known(self) -> frozenset[str]:
        """The contacts, however old. Good enough to select history, not to raise a message's tier."""
        return frozenset() if self._copy is None else self._copy.addresses | self._copy.others

    def knows_sender(self, headers: Headers) -> bool:
        senders = parse_addresses(*headers.get_all("From"))
        return bool(senders) and all(contact_form(each.address) in self.last_known for each in senders)

    def replace(self, generated_at: datetime, addresses: Iterable[str], without_priority: Iterable[str] = ()) -> None:
        """Take a new export in; on disk when this returns. An address that is also among those without priority, which
        Gmail's dots make possible, has none."""
        generated_at = require_utc(generated_at, "generated_at")
        others = frozenset(contact_form(address) for address in without_priority)
        known = frozenset(contact_form(address) for address in addresses) - others
        held = {"addresses": sorted(known), "without_priority": sorted(others)}
        write_json(self._path, {"version": 1, "generated_at": generated_at.isoformat(), **held})
        self._copy = _Copy(generated_at, known, others)

    def current(self) -> Contacts:
        """What may be used now. Records the state in metrics, and logs its changes."""
        state = self.state
        metrics.record_contact_cache(state, self._age_s())
        if state is not self._reported:
            (log.info if state is CacheState.FRESH else log.warning)("contacts.cache", state=str(state))
            self._reported = state
        usable = self._copy.addresses if self._copy and state is CacheState.FRESH else frozenset()
        return Contacts(usable, state, self.generated_at)

    @property
    def state(self) -> CacheState:
        if self._copy is None:
            return CacheState.MISSING
        age = self._clock.now() - self._copy.generated_at
        return CacheState.FRESH if -_TOLERATED_SKEW <= age <= self._max_age else CacheState.STALE

    def _age_s(self) -> float | None:
        return None if self._copy is None else (self._clock.now() - self._copy.generated_at).total_seconds()


def _read(path: Path) -> _Copy | None:
    held = read_json(path)
    if not isinstance(held, dict) or held.get("version") != 1:
        return None
    addresses, stamp = held.get("addresses"), held.get("generated_at")
    if not isinstance(addresses, list) or not isinstance(stamp, str):
        return None
    try:
        generated_at = require_utc(datetime.fromisoformat(stamp), "generated_at")
    except (ValueError, BadInput):
        return None
    others = held.get("without_priority", [])
    return _Copy(generated_at, _texts(addresses), _texts(others if isinstance(others, list) else []))


def _texts(values: Iterable[object]) -> frozenset[str]:
    return frozenset(each for each in values if isinstance(each, str))


@dataclass(frozen=True)
class ConnectorGuidance:
    """What the connector got from the Switchboard to decide by; renewed by heartbeats."""

    policy: Callable[[], TierPolicy]
    contacts: ContactCache
    categories: Callable[[], Categories] = shipped


@dataclass
class ConnectorHeartbeat:
    switchboard: SwitchboardClient
    contacts: ContactCache
    clock: Clock
    instance: str
    counters: Callable[[], Mapping[str, int]] = dict
    checkpoint: Callable[[], Mapping[str, Any]] = dict
    status: str = "running"
    policy: TierPolicy = field(default=SEED)
    categories: Categories = field(default_factory=shipped)
    categories_version: str | None = None
    answered_at: float | None = None
    """By the monotonic clock."""

    async def ensure(self, max_age_s: float) -> None:
        """Have a heartbeat answered within this time."""
        if self.answered_at is None or self.clock.monotonic() - self.answered_at > max_age_s:
            await self.beat()

    async def beat(self) -> None:
        reply = await self.switchboard.heartbeat(
            self.instance,
            self.status,
            self.counters(),
            self.checkpoint(),
            self.policy.version,
            self.categories_version,
        )
        if reply.policy is not None and "rules" in reply.policy:
            self._adopt(reply.policy)
        if reply.categories is not None and "definitions" in reply.categories:
            self._adopt_categories(reply.categories)
        self.answered_at = self.clock.monotonic()
        await self._renew_contacts(reply.contacts_generated_at)

    def _adopt(self, policy: Mapping[str, Any]) -> None:
        """A policy that cannot be read is logged, and the current one stays in force."""
        try:
            self.policy = parse_policy(dict(policy))
            log.info("policy.adopted", version=self.policy.version, rules=len(self.policy.rules))
        except BadInput as error:
            log.error("policy.refused", problem=error.message)

    def _adopt_categories(self, given: Mapping[str, Any]) -> None:
        """Categories that cannot be read are logged, and the current ones stay in force."""
        try:
            self.categories, self.categories_version = parse_categories(given), str(given.get("version"))
            log.info("categories.adopted", version=self.categories_version)
        except BadInput as error:
            log.error("categories.refused", problem=error.message)

    async def _renew_contacts(self, generated_at: datetime | None) -> None:
        """A failure is only logged: mail is taken in without contacts."""
        have = None if self.contacts.is_from_the_future else self.contacts.generated_at
        if generated_at is None or (have is not None and generated_at <= have):
            return
        try:
            export = await self.switchboard.contacts_export(have)
        except PostroomError as error:
            log.warning("contacts.not_renewed", problem=error.message)
            return
        if export.generated_at is not None and export.addresses is not None:
            self.contacts.replace(export.generated_at, export.addresses, export.without_priority)
