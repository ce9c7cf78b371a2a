"""The connector's own copy of the known contacts (PQ-4), so that no message waits for anybody to look one up.

A copy that is missing, damaged or too old is not used: rules 2 to 4 go on without it, and telemetry says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from postroom.connectors import instruments
from postroom.connectors.files import read_json, write_json
from postroom.connectors.priority import contact_form
from postroom.domain.clock import Clock, require_utc
from postroom.domain.errors import BadInput
from postroom.mail.addresses import parse_addresses
from postroom.mail.headers import Headers
from postroom.telemetry import logs

FILE = "contacts.json"
MAX_AGE = timedelta(minutes=60)
_SKEW = timedelta(minutes=5)
"""A copy from the future means that a clock is wrong; this much is forgiven."""
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

    @property
    def degraded(self) -> bool:
        return self.state is not CacheState.FRESH


@dataclass(frozen=True, slots=True)
class _Copy:
    generated_at: datetime
    addresses: frozenset[str]


class ContactCache:
    """One a connector; reads its file once and keeps the set in memory."""

    def __init__(self, folder: Path, clock: Clock, max_age: timedelta = MAX_AGE) -> None:
        self._path = folder / FILE
        self._clock = clock
        self._max_age = max_age
        self._copy = _read(self._path)
        self._told: CacheState | None = None

    @property
    def generated_at(self) -> datetime | None:
        return None if self._copy is None else self._copy.generated_at

    @property
    def is_from_the_future(self) -> bool:
        """Made under a clock that was wrong: any other copy is better."""
        return self._copy is not None and self._copy.generated_at > self._clock.now() + _SKEW

    @property
    def last_known(self) -> frozenset[str]:
        """The contacts however old: good enough to tell whose history is wanted, not to let anybody jump a queue."""
        return frozenset() if self._copy is None else self._copy.addresses

    def knows_sender(self, headers: Headers) -> bool:
        senders = parse_addresses(*headers.get_all("From"))
        return bool(senders) and all(contact_form(each.address) in self.last_known for each in senders)

    def replace(self, generated_at: datetime, addresses: Iterable[str]) -> None:
        """Take a new export in; on disk when this returns."""
        generated_at = require_utc(generated_at, "generated_at")
        known = frozenset(contact_form(address) for address in addresses)
        write_json(self._path, {"version": 1, "generated_at": generated_at.isoformat(), "addresses": sorted(known)})
        self._copy = _Copy(generated_at, known)

    def current(self) -> Contacts:
        """What may be used now; counts and tells when that is nothing."""
        state = self.state
        instruments.record_contact_cache(state, self._age_s())
        if state is not self._told:
            (log.info if state is CacheState.FRESH else log.warning)("contacts.cache", state=str(state))
            self._told = state
        usable = self._copy.addresses if self._copy and state is CacheState.FRESH else frozenset()
        return Contacts(usable, state, self.generated_at)

    @property
    def state(self) -> CacheState:
        if self._copy is None:
            return CacheState.MISSING
        age = self._clock.now() - self._copy.generated_at
        return CacheState.FRESH if -_SKEW <= age <= self._max_age else CacheState.STALE

    def _age_s(self) -> float | None:
        return None if self._copy is None else (self._clock.now() - self._copy.generated_at).total_seconds()


def _read(path: Path) -> _Copy | None:
    held = read_json(path)
    if not isinstance(held, dict) or held.get("version") != 1:
        return None
    addresses, told = held.get("addresses"), held.get("generated_at")
    if not isinstance(addresses, list) or not isinstance(told, str):
        return None
    try:
        generated_at = require_utc(datetime.fromisoformat(told), "generated_at")
    except (ValueError, BadInput):
        return None
    return _Copy(generated_at, frozenset(each for each in addresses if isinstance(each, str)))
