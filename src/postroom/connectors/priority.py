"""The priority rules of spec/2 (PQ-1 to PQ-5): which policy tier a message gets, and by which rule.

The rules run in order and the first match decides; a missing header matches nothing. They look at the index of sent
Message-IDs, which the Switchboard keeps, and at the connector's own copy of the contacts. A copy that is missing,
damaged or too old is not used, and metrics show it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from postroom.connectors import metrics
from postroom.connectors.state_files import read_json, write_json
from postroom.domain.clock import Clock, require_utc
from postroom.domain.errors import BadInput
from postroom.domain.tiers import Tier
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.authentication import Authentication, authentication_of
from postroom.mail.headers import Headers
from postroom.mail.tier_policy import is_bulk
from postroom.telemetry import logs

MOST_TARGETS = 100
"""Of an endless chain of references the latest count."""
_REMEMBERED = 20_000
_ID = re.compile(r"<([^<>\s]{1,996})>")
_BARE_ID = re.compile(r"[^<>\s@,]{1,500}@[^<>\s@,]{1,490}")


class SentRegister(Protocol):
    """Where the ids are kept."""

    async def sent_add(self, message_ids: Collection[str]) -> None: ...

    async def sent_lookup(self, message_ids: Collection[str]) -> frozenset[str]:
        """Those of them that the user sent."""


def message_id_of(headers: Headers) -> str | None:
    """The Message-ID with its angle brackets, which a careless sender may have left out."""
    return next(iter(_ids(headers.get("Message-ID"))), None)


def reply_targets(headers: Headers) -> tuple[str, ...]:
    """What the message answers: `In-Reply-To`, or `References` only where that header is absent."""
    name = "In-Reply-To" if (headers.get("In-Reply-To") or "").strip() else "References"
    return _ids(headers.get(name))[-MOST_TARGETS:]


def _ids(value: str | None) -> tuple[str, ...]:
    """Those that could be one: what cannot be printed is in no mail that a person has sent, and no call takes it."""
    if value is None:
        return ()
    found = tuple(f"<{each}>" for each in _ID.findall(value) if each.isprintable())
    bare = None if found else _BARE_ID.fullmatch(value.strip("<> \t"))
    return (f"<{bare[0]}>",) if bare and bare[0].isprintable() else found


class SentIndex:
    def __init__(self, register: SentRegister) -> None:
        self._register = register
        self._known: OrderedDict[str, None] = OrderedDict()

    async def add(self, message_ids: Iterable[str]) -> None:
        """The user sent these."""
        fresh = [each for each in dict.fromkeys(message_ids) if each not in self._known]
        if fresh:
            await self._register.sent_add(fresh)
            self._remember(fresh)

    async def among(self, message_ids: Iterable[str]) -> frozenset[str]:
        """Those of them that the user sent. Only a yes is remembered: a no may become a yes at any time."""
        wanted = frozenset(message_ids)
        known = {each for each in wanted if each in self._known}
        if unknown := wanted - known:
            found = await self._register.sent_lookup(sorted(unknown))
            self._remember(found)
            known |= found
        return frozenset(known)

    def _remember(self, message_ids: Iterable[str]) -> None:
        for each in message_ids:
            self._known[each] = None
            self._known.move_to_end(each)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


GMAIL_SERVERS = ("mx.google.com",)


class AssignmentRule(StrEnum):
    KNOWN_CONTACT = "known_contact"
    REPLY_TO_OUTBOUND = "reply_to_outbound"
    DIRECT_CORRESPONDENCE = "direct_correspondence"
    FALLBACK_DEFAULT = "fallback_default"


class ContactProof(StrEnum):
    """What it takes for a known sender to be believed."""

    NOTHING = "nothing"
    NOT_FAILED = "not_failed"
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class TierAssignment:
    tier: Tier
    rule: AssignmentRule


FALLBACK = TierAssignment(Tier.DEFAULT, AssignmentRule.FALLBACK_DEFAULT)


def contact_form(address: str) -> str:
    """The form in which contacts are compared: Gmail's dots and plus-tags name no other person."""
    return canonical_address(address, fold_gmail=True)


@dataclass(frozen=True)
class PriorityRules:
    own: frozenset[str]
    """The user's addresses, as `own_form` gives them."""
    proof: ContactProof = ContactProof.NOT_FAILED
    servers: Collection[str] = GMAIL_SERVERS
    """The receiving server's names in `Authentication-Results`."""

    def assign(self, headers: Headers, contacts: Container[str], sent: Container[str]) -> TierAssignment:
        """`contacts` in their compared form; `sent` are Message-IDs of the user's own mail."""
        if self._from_known_contact(headers, contacts):
            return TierAssignment(Tier.HIGH_PRIORITY, AssignmentRule.KNOWN_CONTACT)
        if any(target in sent for target in reply_targets(headers)):
            return TierAssignment(Tier.HIGH_PRIORITY, AssignmentRule.REPLY_TO_OUTBOUND)
        if self._is_direct(headers):
            return TierAssignment(Tier.INTERACTIVE, AssignmentRule.DIRECT_CORRESPONDENCE)
        return FALLBACK

    def _from_known_contact(self, headers: Headers, contacts: Container[str]) -> bool:
        """Every sender named has to be known: a forger may not hide behind a friend who is named first."""
        senders = parse_addresses(*headers.get_all("From"))
        if not senders or not all(contact_form(each.address) in contacts for each in senders):
            return False
        return all(self._believed(headers, each.domain) for each in senders)

    def _believed(self, headers: Headers, domain: str) -> bool:
        if self.proof is ContactProof.NOTHING:
            return True
        found = authentication_of(headers, self.servers, domain)
        if self.proof is ContactProof.PASSED:
            return found is Authentication.PASSED
        return found is not Authentication.FAILED

    def _is_direct(self, headers: Headers) -> bool:
        if "List-Unsubscribe" in headers or is_bulk(headers):
            return False
        return any(own_form(each.address) in self.own for each in parse_addresses(*headers.get_all("To")))


def own_form(address: str) -> str:
    """The user's own mailbox is Gmail's at whatever domain, so a plus-tag leads to it."""
    local, at, domain = contact_form(address).rpartition("@")
    return f"{local.partition('+')[0] or local}{at}{domain}"


CONTACTS_FILE = "contacts.json"
MAX_AGE = timedelta(minutes=60)
_TOLERATED_SKEW = timedelta(minutes=5)
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


@dataclass(frozen=True, slots=True)
class _Copy:
    generated_at: datetime
    addresses: frozenset[str]


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
        """Made under a clock that was wrong: any other copy is better."""
        return self._copy is not None and self._copy.generated_at > self._clock.now() + _TOLERATED_SKEW

    @property
    def last_known(self) -> frozenset[str]:
        """The contacts however old: good enough to tell whose history is wanted, not to raise a message's tier."""
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
    return _Copy(generated_at, frozenset(each for each in addresses if isinstance(each, str)))
