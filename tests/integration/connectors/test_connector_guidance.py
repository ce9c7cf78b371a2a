"""What a connector goes by: contacts and tier policy, brought by heartbeats; and the burst at eight o'clock."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from postroom.connectors.guidance import CacheState
from postroom.db import Database
from postroom.db.tables.mail import contact_exports, contacts, policy_rules
from postroom.domain.ids import new_id
from postroom.queue import JobContext
from postroom.switchboard.contacts import export_contacts
from tests.support.connectors import ConnectorRig, connector_rig, source_of
from tests.support.queues import run_until_idle

BULK = {"List-Unsubscribe": "<https://x.example/off>", "Precedence": "bulk"}


async def know(stage: ConnectorRig, *addresses: str) -> None:
    now = stage.clock.now()

    def write(tx: Any) -> None:
        tx.execute(delete(contacts))
        tx.execute(contacts.insert(), [{"address": each, "source": "csv", "added_at": now} for each in addresses])
        version = int(now.timestamp())
        tx.execute(contact_exports.insert().values(version=version, generated_at=now, addresses=1, sha256="x"))

    await stage.bench.database.write(write)


@pytest.mark.req("PQ-4", "PQ-1")
async def test_contacts_come_with_the_heartbeat_and_go_stale_without_it(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        assert stage.passes.contacts.current().state is CacheState.MISSING
        await know(stage, "ann@friends.example")
        await stage.passes.beat()
        proven = {"Authentication-Results": "mx.google.com; dmarc=pass header.from=friends.example"}
        first = stage.deliver("Hello", to="list@x.example", headers=proven)
        unproven = stage.deliver("Hello from elsewhere", to="list@x.example")
        await stage.passes.live()
        stage.clock.advance(timedelta(minutes=61).total_seconds())
        assert stage.passes.contacts.current().state is not CacheState.FRESH
        late = stage.deliver("Hello again", to="list@x.example", headers=proven)
        direct = stage.deliver("To you alone")
        await stage.passes.live()
        rows = await stage.rows()
        assert [(rows[each].policy_tier, rows[each].assignment_rule) for each in (first, unproven, late, direct)] == [
            ("high_priority", "known_contact"),
            ("default", "fallback_default"),
            ("default", "fallback_default"),
            ("interactive", "direct_correspondence"),
        ]
        await know(stage, "ann@friends.example")
        await stage.passes.beat()
        assert stage.passes.contacts.current().state is CacheState.FRESH


@pytest.mark.req("PQ-4")
async def test_contacts_made_under_a_wrong_clock_are_replaced_once_it_is_right(
    database: Database, tmp_path: Path
) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await database.write(lambda tx: export_contacts(tx, stage.clock.now() + timedelta(days=400)))
        await stage.passes.beat()
        assert stage.passes.contacts.current().state is not CacheState.FRESH
        made = await database.write(lambda tx: export_contacts(tx, stage.clock.now()))
        assert made.generated_at == stage.clock.now()
        await stage.passes.beat()
        assert stage.passes.contacts.current().state is CacheState.FRESH


@pytest.mark.req("BF-20")
async def test_a_changed_policy_is_adopted_with_the_next_heartbeat(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        await set_policy(stage, {"tier": 3, "condition": {"subject": "lottery"}, "note": "No lotteries"})
        await stage.passes.beat()
        lottery, bulk = stage.deliver("Lottery"), stage.deliver("Weekly", headers=BULK)
        await stage.passes.live()
        rows = await stage.rows()
        assert lottery not in rows
        assert rows[bulk].ingestion_tier == "full"
        await set_policy(stage, {"tier": 3, "condition": {"subject": "(broken"}, "note": "Bad"})
        await stage.passes.beat()
        again = stage.deliver("Lottery again")
        await stage.passes.live()
        assert again not in await stage.rows(), "a policy that cannot be read leaves the old one in force"


async def set_policy(stage: ConnectorRig, *rules: dict[str, Any]) -> None:
    def write(tx: Any) -> None:
        tx.execute(delete(policy_rules))
        for number, rule in enumerate(rules):
            values = {"id": new_id(), "position": number, "enabled": True, "updated_at": stage.clock.now(), **rule}
            tx.execute(policy_rules.insert().values(**values))

    await stage.bench.database.write(write)


@pytest.mark.req("PQ-11")
@pytest.mark.parametrize("place", [0, 7, 15])
async def test_at_eight_the_doctor_is_served_before_fifteen_newsletters(
    database: Database, tmp_path: Path, place: int
) -> None:
    async with connector_rig(source_of([]), database, tmp_path) as stage:
        await stage.passes.live()
        await set_policy(stage)  # whole, so that all of them wait for the model
        await stage.passes.beat()
        delivered = [f"Newsletter {number}" for number in range(15)]
        delivered.insert(place, "Your appointment at 9:15")
        ids = {stage.deliver(subject, headers=BULK if "News" in subject else None): subject for subject in delivered}
        await stage.passes.live()
        by_message = {row.id: ids[key] for key, row in (await stage.rows()).items()}
        served: list[str] = []

        async def classify(context: JobContext) -> None:
            served.append(by_message[context.job.payload["message_id"]])

        await run_until_idle(stage.bench.queue, {"classify": classify})
        assert served[0] == "Your appointment at 9:15"
        assert served[1:] == [subject for subject in delivered if "News" in subject], "and in order after it"
