"""Tools of an agent that count: what the archive holds, and the digest of a day or a week."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from postroom.app.archive_statistics import ArchiveStatistics, count_archive, read_statistics
from postroom.app.digest import content
from postroom.archive.backend import ArchiveBackend
from postroom.archive.statistics import StatisticsBy
from postroom.contract import agent as contract
from postroom.domain.ids import normal_email
from postroom.domain.roles import Caller, Permission, Role
from postroom.queue import JobQueue
from postroom.settings import SettingsSource
from postroom.switchboard.toolbox import Tool


class CountingTools:
    def __init__(self, queue: JobQueue, archive: ArchiveBackend, settings: SettingsSource) -> None:
        self._queue = queue
        self._archive = archive
        self._settings = settings

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.STATISTICS,
            Role.AGENT,
            Permission.READ,
            "Count what is in the archive by sender, domain, time, size, label or type of attachment. Each row has the "
            "`search` that finds its messages.",
            self.statistics,
            reads_only=True,
        )
        yield Tool(
            contract.DIGEST,
            Role.AGENT,
            Permission.READ,
            "The digest of a day or a week: mail received by tier, category and sender, what was done and by whom, "
            "what waits, and what was spent.",
            self.digest,
            reads_only=True,
            keeps_to_mailbox=True,
        )

    async def statistics(self, caller: Caller, given: contract.StatisticsArguments) -> contract.StatisticsReply:
        named = given.endpoint_identity
        mailbox = None if named is None else normal_email(named, "endpoint_identity")
        found = await self._counted(StatisticsBy(given.by), mailbox, given.limit)
        rows = [contract.CountedReply.model_validate(row) for row in found.rows]
        return contract.StatisticsReply(by=given.by, rows=rows, values=found.values, counted_at=found.counted_at)

    async def _counted(self, by: StatisticsBy, mailbox: str | None, limit: int) -> ArchiveStatistics:
        """As a worker counted last, every 15 minutes; an archive that none has counted yet is counted now."""
        database = self._queue.database
        if (await database.read(lambda tx: read_statistics(tx, by, None, 1))).counted_at is None:
            await count_archive(database, self._archive, self._queue.clock)
        return await database.read(lambda tx: read_statistics(tx, by, mailbox, limit))

    async def digest(self, caller: Caller, given: contract.DigestArguments) -> contract.DigestReply:
        zone = content.zone_of(self._settings.now)
        day = given.day or self._queue.clock.now().astimezone(zone).date()
        period = content.DigestPeriod.holding(content.DigestKind(given.period), day, zone)
        mailbox = caller.endpoint_identity
        return digest_reply(await self._queue.database.read(lambda tx: content.count_digest(tx, period, mailbox)))


def digest_reply(counts: content.DigestCounts) -> contract.DigestReply:
    named, period = contract.NamedCountReply, counts.period
    return contract.DigestReply(
        title=period.title,
        first_day=period.first,
        last_day=period.last,
        zone=period.zone.key,
        received=counts.received,
        by_tier=[named(name=content.TIER_NAMES[tier], count=number) for tier, number in counts.tiers],
        by_category=[named(name=content.category_name(each.name), count=each.count) for each in counts.categories],
        top_senders=[named(name=each.name, count=each.count) for each in counts.senders],
        recovered=counts.recovered,
        done=[
            contract.DoneReply(by=content.ORIGIN_NAMES[each.origin], what=content.what_was_done(each), count=each.count)
            for each in counts.done
        ],
        failed=counts.failed,
        needs_approval=counts.needs_approval,
        needs_review=counts.needs_review,
        model_calls=counts.model_calls,
        spent_microdollars=counts.spent,
    )
