"""The priority rules of spec/2 (PQ-1, PQ-2, PQ-5): which policy tier a message gets, and by which rule. Pure.

The rules run in order and the first that matches decides. A header that is missing matches nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass
from enum import StrEnum

from postroom.connectors.sent_index import reply_targets
from postroom.domain.tiers import Tier
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.mail.authentication import Authentication, authentication_of
from postroom.mail.headers import Headers
from postroom.mail.policy import is_bulk

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
class Assignment:
    tier: Tier
    rule: AssignmentRule


FALLBACK = Assignment(Tier.DEFAULT, AssignmentRule.FALLBACK_DEFAULT)


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

    def assign(self, headers: Headers, contacts: Container[str], sent: Container[str]) -> Assignment:
        """`contacts` in their compared form; `sent` are Message-IDs of the user's own mail."""
        if self._from_known_contact(headers, contacts):
            return Assignment(Tier.HIGH_PRIORITY, AssignmentRule.KNOWN_CONTACT)
        if any(target in sent for target in reply_targets(headers)):
            return Assignment(Tier.HIGH_PRIORITY, AssignmentRule.REPLY_TO_OUTBOUND)
        if self._is_direct(headers):
            return Assignment(Tier.INTERACTIVE, AssignmentRule.DIRECT_CORRESPONDENCE)
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
