"""The priority rules of spec/2 (PQ-1 to PQ-5): which policy tier a message gets, and by which rule.

The rules run in order and the first match decides; a missing header matches nothing. They look at the contacts and at
the index of sent Message-IDs, which the Switchboard keeps.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from postroom.domain.terms import AssignmentRule, Tier
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.authentication import Authentication, authentication_of
from postroom.mail.header_features import is_bulk
from postroom.mail.headers import Headers
from postroom.mail.sender_kinds import is_from_a_list, kinds_of
from postroom.mail.tier_policy import is_list_mail

MOST_TARGETS = 100
"""Only the latest of a long chain of references are used."""
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
    """Those that can be a Message-ID; one with unprintable characters is in no mail that a person sent."""
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
        """Those of them that the user sent. Only these are cached: others may still be sent."""
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


class ContactProof(StrEnum):
    """What it takes to believe that a message is from the contact that it names."""

    ALIGNED = "aligned"
    """The receiving server found the domain in `From` authenticated: by DMARC, or by aligned SPF or DKIM."""
    NOT_FAILED = "not_failed"
    """The receiving server found no forgery; it may have found nothing at all."""


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
    proof: ContactProof = ContactProof.ALIGNED
    servers: Collection[str] = GMAIL_SERVERS
    """The receiving server's names in `Authentication-Results`."""
    uses_kinds: bool = True
    """Whether the kind of sender (`mail/sender_kinds.py`) may keep a message from rules 1 and 3."""

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
        """All senders in From must be known, so that a forger cannot hide behind a contact who is named first. Mail of
        a list is written for all of its readers."""
        senders = parse_addresses(*headers.get_all("From"))
        if self._is_list(headers) or not senders or not all(contact_form(each.address) in contacts for each in senders):
            return False
        return all(self._believed(headers, each.domain) for each in senders)

    def _is_list(self, headers: Headers) -> bool:
        return is_list_mail(headers) or (self.uses_kinds and is_from_a_list(headers))

    def _believed(self, headers: Headers, domain: str) -> bool:
        found = authentication_of(headers, self.servers, domain)
        if self.proof is ContactProof.ALIGNED:
            return found is Authentication.PASSED
        return found is not Authentication.FAILED

    def _is_direct(self, headers: Headers) -> bool:
        if "List-Unsubscribe" in headers or is_bulk(headers):
            return False
        if not any(own_form(each.address) in self.own for each in parse_addresses(*headers.get_all("To"))):
            return False
        return not (self.uses_kinds and kinds_of(headers).is_unwanted)


def own_form(address: str) -> str:
    """The user's own mailbox is Gmail's at whatever domain, so a plus-tag leads to it."""
    local, at, domain = contact_form(address).rpartition("@")
    return f"{local.partition('+')[0] or local}{at}{domain}"
