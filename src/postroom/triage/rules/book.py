"""The rules in force, compiled and at hand; notices changes by any process before the next message is judged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.telemetry import logs
from postroom.triage.rules import store
from postroom.triage.rules.engine import Match, RuleSet
from postroom.triage.rules.facts import MailFacts
from postroom.triage.rules.model import rule_of
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.store import Version

log = logs.get(__name__)

_LONGEST_TRUST_S = 300
"""A row that was changed by hand shows in no version; it is read again after this time."""


class RuleBook:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._rules = RuleSet(())
        self._seen: dict[str, str] = {}
        self._version: Version | None = None
        self._read_at = 0.0
        self._turning = asyncio.Lock()

    async def match(self, facts: MailFacts) -> Match | None:
        """The first rule that matches. Rules that cannot be used are disabled with the reason, and decide nothing."""
        async with self._turning:
            rules = await self._current()
        found = rules.first_match(facts, self._clock.now())
        if rules.broken:
            await self._disable(rules)
        return found

    async def _current(self) -> RuleSet:
        if self._clock.monotonic() - self._read_at > _LONGEST_TRUST_S:
            self._version = None
        known = self._version
        changed = await self._database.read(lambda tx: store.load_changed(tx, known))
        if changed is not None:
            version, rules = changed
            # All of it or nothing: whoever is cancelled here must not leave old rules under the new version.
            self._rules = await asyncio.to_thread(compiled, rules)
            self._seen = {rule.id: rule.stamp for rule in rules}
            self._version, self._read_at = version, self._clock.monotonic()
        return self._rules

    async def _disable(self, rules: RuleSet) -> None:
        reasons, seen = dict(rules.broken), dict(self._seen)
        names = await self._database.write(lambda tx: store.disable_broken(tx, reasons, seen, self._clock.now()))
        for rule_id in reasons:
            rules.broken.pop(rule_id, None)
        if names:
            log.warning("rules.disabled", rules=names)


def compiled(rules: Sequence[StoredRule]) -> RuleSet:
    """Those that can be read; the others are among its `broken`."""
    usable = RuleSet(rule_of(rule.id, rule.draft) for rule in rules if rule.draft is not None)
    usable.broken |= {rule.id: rule.problem or "It cannot be read" for rule in rules if rule.draft is None}
    return usable
