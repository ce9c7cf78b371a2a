"""What a connector does beside ingest: the archive, the history cursor, sent mail, heartbeats."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postroom.db import Tx
from postroom.db.tables.mail import contact_exports, contacts, policy_rules
from postroom.domain.errors import BadInput, NotAllowed, NotFound, Retryable
from postroom.domain.ids import new_id
from postroom.domain.roles import Role
from postroom.switchboard.tools.mail import list_connectors
from tests.support.archives import generated_mail, plain_letter
from tests.support.mail import ME, inline
from tests.support.switchboards import Bench

DAY_MS = 86_400_000


def sample(count: int) -> list[dict[str, Any]]:
    return [
        {
            "gmail_id": mail.gmail_id,
            "thread_id": mail.thread_id,
            "labels": sorted(mail.labels or ()),
            "internal_date": int(mail.received.timestamp() * 1_000) if mail.received else 0,
            "raw": inline(mail.raw)["base64"],
        }
        for mail in generated_mail(count)
    ]


@pytest.mark.req("SY-13")
async def test_mail_is_stored_looked_up_and_walked(bench: Bench) -> None:
    mails = sample(40)
    async with bench.client() as call:
        stored = (await call("archive.store", endpoint_identity=ME, messages=mails))["stored"]
        again = (await call("archive_store", endpoint_identity=ME, messages=mails[:5]))["stored"]
        ids = [mail["gmail_id"] for mail in mails]
        known = (await call("archive.lookup", endpoint_identity=ME, gmail_ids=[*ids, "nope"]))["known"]
        walked, cursor = [], None
        while True:
            days = {"date_from": "1990-01-01", "date_to": "2040-01-01", "limit": 7, "headers": ["subject", "TO"]}
            page = await call("archive.range", {**days, "endpoint_identity": ME, "cursor": cursor})
            walked += page["messages"]
            if (cursor := page["cursor"]) is None:
                break
    assert [proof["outcome"] for proof in stored] == ["stored"] * 40
    assert [proof["outcome"] for proof in again] == ["duplicate"] * 5
    assert known == {p["key"]: {"key": p["key"], "sha256": p["sha256"]} for p in stored}
    assert sorted(step["gmail_id"] for step in walked) == sorted(ids)
    times = [step["internal_date"] for step in walked]
    assert times == sorted(times, reverse=True)
    sent = {mail["gmail_id"]: mail for mail in mails}
    for step in walked:
        original = sent[step["gmail_id"]]
        assert (step["internal_date"], step["labels"]) == (original["internal_date"], original["labels"])
        assert {header["name"].lower() for header in step["headers"]} <= {"subject", "to"}


@pytest.mark.req("BF-12")
async def test_old_mail_keeps_its_millisecond_on_the_way_through_the_archive(bench: Bench) -> None:
    """A millisecond early is the day before, for mail of the first moment of a day."""
    [mail] = sample(1)
    for number, moment in enumerate((1_099_480_801_215, 1_099_426_120_452, 1_099_353_600_000, 1)):
        given = mail | {"gmail_id": f"a{number}", "internal_date": moment}
        async with bench.client() as call:
            await call("archive.store", endpoint_identity=ME, messages=[given])
            days = {"date_from": "1970-01-01", "date_to": "2040-01-01"}
            found = (await call("archive.range", endpoint_identity=ME, **days))["messages"]
        assert {each["gmail_id"]: each["internal_date"] for each in found}[f"a{number}"] == moment


@pytest.mark.req("SY-13")
async def test_changes_at_the_source_are_recorded_and_nothing_is_removed(bench: Bench) -> None:
    mails = sample(3)
    first, second, third = (mail["gmail_id"] for mail in mails)
    async with bench.client() as call:
        await call("archive.store", endpoint_identity=ME, messages=mails)
        changes = {"labels": [{"gmail_id": first, "labels": ["STARRED"]}, {"gmail_id": "zz", "labels": []}]}
        answer = await call("archive.changes", {**changes, "endpoint_identity": ME, "deleted": [second, "yy"]})
    assert answer["unknown"] == ["yy", "zz"]
    found = await bench.archive.read(lambda archive: archive.find_many(ME, [first, second, third]))
    assert found[first].labels == ("STARRED",)
    assert found[second].deleted_at_source is not None
    assert found[third].deleted_at_source is None


async def test_a_damaged_batch_stores_nothing_and_names_the_message(bench: Bench) -> None:
    mails = [*sample(2), {"gmail_id": "bad", "internal_date": 1, "raw": "not base64"}]
    async with bench.client() as call:
        with pytest.raises(BadInput) as refused:
            await call("archive.store", endpoint_identity=ME, messages=mails)
        assert refused.value.field == "messages.2.raw"
        with pytest.raises(BadInput) as refused:
            await call("archive.store", endpoint_identity="nobody", messages=sample(1))
        assert refused.value.field == "endpoint_identity"
    assert await bench.archive.read(lambda archive: archive.count()) == 0


@pytest.mark.req("SY-13")
async def test_one_reader_at_a_time_moves_the_history_cursor(bench: Bench) -> None:
    await bench.account()
    async with bench.client() as call:
        first = await call("history.claim", endpoint_identity=ME, instance="one")
        assert (first["history_id"], first["fence"]) == (None, 1)
        with pytest.raises(Retryable, match="connector one reads") as busy:
            await call("history.claim", endpoint_identity=ME, instance="two")
        assert busy.value.retry_after is not None
        assert timedelta() < busy.value.retry_after <= timedelta(seconds=first["lease_s"])
        await call("history.commit", endpoint_identity=ME, fence=1, history_id="123456789012345678901")
        await call("history.commit", endpoint_identity=ME, fence=1)
        await call("history.commit", endpoint_identity=ME, fence=1, release=True)
        second = await call("history.claim", endpoint_identity=ME, instance="two")
        assert (second["history_id"], second["fence"]) == ("123456789012345678901", 2)
        with pytest.raises(NotAllowed, match="this one must stop"):
            await call("history.commit", endpoint_identity=ME, fence=1, history_id="5")
        with pytest.raises(NotFound):
            await call("history.claim", endpoint_identity="you@example.org", instance="one")


async def test_replies_to_sent_mail_are_recognised(bench: Bench) -> None:
    await bench.account()
    sent = [{"message_id": "<a@example.org>", "sent_at": "2026-01-01T00:00:00Z"}, {"message_id": "b@example.org"}]
    async with bench.client() as call:
        assert (await call("sent.add", endpoint_identity=ME, messages=sent))["added"] == 2
        assert (await call("sent.add", endpoint_identity=ME, messages=sent))["added"] == 0
        asked = ["<b@example.org>", "a@example.org", "<c@example.org>"]
        known = (await call("sent.lookup", endpoint_identity=ME, message_ids=asked))["known"]
    assert known == ["<b@example.org>", "a@example.org"]


@pytest.mark.req("PL-5")
async def test_a_heartbeat_registers_a_connector_and_keeps_it_alive(bench: Bench) -> None:
    beat = {"connector_type": "gmail", "endpoint_identity": ME, "instance": "host 1", "version": "0.1.0"}
    async with bench.client() as call:
        await call("connector.heartbeat", beat, status="starting")
        await call("connector.heartbeat", beat, status="running", counters={"ingested": 3}, checkpoint={"id": "7"})
        with pytest.raises(BadInput) as refused:
            await call("connector.heartbeat", beat, status="running", counters={"ingested": -1})
    assert refused.value.field == "counters.ingested"
    [connector] = await bench.database.read(list_connectors)
    assert (connector.status, connector.counters, connector.checkpoint) == ("running", {"ingested": 3}, {"id": "7"})
    now = bench.queue.clock.now()
    assert connector.is_alive(now)
    assert not connector.is_alive(now + timedelta(minutes=6))


async def test_a_heartbeat_brings_rules_only_when_they_are_new(bench: Bench) -> None:
    now = bench.queue.clock.now()
    rules = [
        {
            "id": new_id(),
            "position": n,
            "tier": 2,
            "condition": {"n": n},
            "enabled": n != 1,
            "note": "",
            "updated_at": now,
        }
        for n in (2, 1, 0)
    ]
    await bench.database.write(lambda tx: (tx.execute(policy_rules.delete()), tx.execute(policy_rules.insert(), rules)))
    beat = {"connector_type": "gmail", "endpoint_identity": ME, "instance": "1", "version": "1", "status": "running"}
    async with bench.client() as call:
        first = (await call("connector.heartbeat", beat))["policy"]
        assert [rule["condition"] for rule in first["rules"]] == [{"n": 0}, {"n": 2}]
        assert "rules" not in (await call("connector.heartbeat", beat, policy_version=first["version"]))["policy"]


@pytest.mark.req("PQ-4")
async def test_contacts_are_exported_with_their_time_and_only_when_newer(bench: Bench) -> None:
    now = bench.queue.clock.now()

    def add(tx: Tx) -> None:
        known = [{"address": f"{name}@example.org", "source": "csv", "added_at": now} for name in ("bea", "ann")]
        tx.execute(contacts.insert(), known)
        tx.execute(contact_exports.insert().values(version=1, generated_at=now, addresses=2, sha256="x"))

    async with bench.client() as call:
        nothing = await call("contacts.export")
        assert (nothing["generated_at"], nothing["addresses"]) == (None, [])
        await bench.database.write(add)
        export = await call("contacts.export")
        assert export["addresses"] == ["ann@example.org", "bea@example.org"]
        again = await call("contacts.export", if_newer_than=export["generated_at"])
    assert again["unchanged"] is True
    assert "addresses" not in again


async def test_an_agent_searches_and_reads_and_changes_nothing(bench: Bench) -> None:
    raw = plain_letter("The appointment with Dr. Smith is on Friday.")
    mail = {"gmail_id": "18f0000000000001", "internal_date": 1_767_268_800_000, "raw": inline(raw)["base64"]}
    async with bench.client() as call:
        await call("archive.store", endpoint_identity=ME, messages=[mail])
    async with bench.client(Role.AGENT) as call:
        [found] = (await call("search_archive", query="smith"))["messages"]
        read = await call("read_message", id=found["key"])
        assert "Dr. Smith is on Friday" in read["text"]
        assert (read["subject"], read["to"]) == ("A letter", [ME])
        assert (await call("list_jobs"))["jobs"] == []
        assert (await call("list_decisions"))["decisions"] == []
        with pytest.raises(NotFound) as missing:
            await call("read_message", id="18f0000000000002")
        assert missing.value.field == "id"
        with pytest.raises(BadInput):
            await call("search_archive", query="from:(")
