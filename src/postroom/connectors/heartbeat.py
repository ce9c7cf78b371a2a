"""The heartbeat of a connector: reports its status and brings back the tier policy and the contacts. Passes wait for
the first answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from postroom import __version__
from postroom.connectors.priority import ContactCache
from postroom.connectors.switchboard_client import SwitchboardClient
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, PostroomError
from postroom.mail.policy_seed import SEED
from postroom.mail.tier_policy import TierPolicy, parse_policy
from postroom.telemetry import logs

CAPABILITIES = ("live", "backfill", "on_demand")
log = logs.get(__name__)


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
    answered_at: float | None = None
    """By the monotonic clock."""

    async def ensure(self, max_age_s: float) -> None:
        """Have a heartbeat answered within this time."""
        if self.answered_at is None or self.clock.monotonic() - self.answered_at > max_age_s:
            await self.beat()

    async def beat(self) -> None:
        reply = await self.switchboard.heartbeat(
            {
                "instance": self.instance,
                "version": __version__,
                "status": self.status,
                "counters": dict(self.counters()),
                "checkpoint": dict(self.checkpoint()),
                "capabilities": list(CAPABILITIES),
                "policy_version": self.policy.version,
            }
        )
        if reply.policy is not None and "rules" in reply.policy:
            self._adopt(reply.policy)
        self.answered_at = self.clock.monotonic()
        await self._renew_contacts(reply.contacts_generated_at)

    def _adopt(self, policy: Mapping[str, Any]) -> None:
        """A policy that cannot be read changes nothing: what was in force stays, and the log says why."""
        try:
            self.policy = parse_policy(dict(policy))
            log.info("policy.adopted", version=self.policy.version, rules=len(self.policy.rules))
        except BadInput as error:
            log.error("policy.refused", problem=error.message)

    async def _renew_contacts(self, generated_at: datetime | None) -> None:
        """Contacts are worth a try and no more: mail is taken in without them."""
        have = None if self.contacts.is_from_the_future else self.contacts.generated_at
        if generated_at is None or (have is not None and generated_at <= have):
            return
        try:
            export = await self.switchboard.contacts_export(have)
        except PostroomError as error:
            log.warning("contacts.not_renewed", problem=error.message)
            return
        if export.generated_at is not None and export.addresses is not None:
            self.contacts.replace(export.generated_at, export.addresses)
