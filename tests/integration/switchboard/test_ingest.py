"""The one way in: stored once, queued in its tier, refused by name; all of it or nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import func, select

from postroom import kill_switch
from postroom.accounts.mailbox_state import record_label_change, record_labels
from postroom.actions.restore import runs
from postroom.actions.restore.items import wire_sha256
from postroom.actions.restore.runs import RestoreOrder
from postroom.archive.messages import ShardName, path_of
from postroom.archive.service import RecentHeaders
from postroom.archive.shards.reader import ShardReader
from postroom.audit import SYSTEM
from postroom.db import Database, Tx, connect
from postroom.db.tables.mail import contact_mailboxes, contacts, ingest_inbox, messages
from postroom.db.tables.queue import jobs
from postroom.domain.actions import ItemState
from postroom.domain.errors import BadInput, NotAllowed
from postroom.domain.roles import Caller, Role
from postroom.switchboard.ingest import Ingest, IngestAccepted
from postroom.switchboard.mail_service import MailService
from tests.support.archives import plain_letter
from tests.support.mail import ME, envelope, inline, letter
from tests.support.switchboards import BACKFILL, Bench

pytestmark = pytest.mark.req("PL-4")


async def stored(bench: Bench) -> list[Any]:
    return await bench.database.read(lambda tx: list(tx.execute(select(messages).order_by(messages.c.id)).all()))


async def queued(bench: Bench) -> list[Any]:
    return await bench.database.read(lambda tx: list(tx.execute(select(jobs).order_by(jobs.c.seq)).all()))


async def counts(database: Database) -> tuple[int, int, int]:
    def count(tx: Tx) -> tuple[int, int, int]:
        tables = (messages, ingest_inbox, jobs)
        first, second, third = (tx.execute(select(func.count()).select_from(table)).scalar_one() for table in tables)
        return first, second, third

    return await database.read(count)


async def test_a_full_message_is_in_the_archive_and_queued_for_a_decision(bench: Bench) -> None:
    account = await bench.account()
    raw = plain_letter("See you at eight.")
    async with bench.client() as call:
        given = envelope("a1", raw=inline(raw), text="See you at eight.", policy_tier="high_priority")
        answer = await call("ingest", given)
    assert (answer["status"], answer["duplicate"], answer["backfill_enabled"]) == ("accepted", False, True)
    [row] = await stored(bench)
    assert (row.account_id, row.subject, row.normalized_text) == (account.id, "A letter", "See you at eight.")
    assert (row.archive_key, row.archive_sha256) == ("a1", hashlib.sha256(raw).hexdigest())
    assert (row.raw_by_ingest, row.direction, row.headers["to"]) == (True, "inbound", ME)
    assert await bench.archive.read(lambda archive: archive.raw(ME, "a1")) == raw
    [job] = await queued(bench)
    assert (job.type, job.queue_name, job.policy_tier) == ("classify", "live", "high_priority")
    assert json.loads(job.payload_json) == {"account_id": account.id, "message_id": row.id}
    assert job.idempotency_key == f"classify:{account.id}:{row.id}"


@pytest.mark.req("PQ-1")
async def test_the_rule_that_gave_a_message_its_tier_is_kept(bench: Bench) -> None:
    async with bench.client() as call:
        await call("ingest", envelope("a1", policy_tier="high_priority", assignment_rule="known_contact"))
        await call("ingest", envelope("a2"))
        refused = await call("ingest", {"envelopes": [envelope("a3", assignment_rule="because")]})
    assert [row.assignment_rule for row in await stored(bench)] == ["known_contact", None]
    assert refused["results"][0]["error"]["field"] == "control.assignment_rule"


async def test_a_reference_into_the_archive_is_as_good_as_the_bytes(bench: Bench) -> None:
    raw = plain_letter("The text of the archive")
    async with bench.client() as call:
        [proof] = (await call("archive.store", endpoint_identity=ME, messages=[mail("a1", raw, ["INBOX", "SENT"])]))[
            "stored"
        ]
        reference = {"key": proof["key"], "sha256": proof["sha256"]}
        await call("ingest", envelope("a1", raw=reference, text=""))
    [row] = await stored(bench)
    assert (row.archive_key, row.raw_by_ingest, row.direction) == ("a1", False, "outbound")
    assert row.normalized_text.strip() == "The text of the archive"
    assert row.labels == ["INBOX", "SENT"]


async def test_a_metadata_message_keeps_no_body_and_is_judged_by_rules_alone(bench: Bench) -> None:
    async with bench.client() as call:
        await call("archive.store", endpoint_identity=ME, messages=[mail("a1", plain_letter("secret body"))])
        await call("ingest", {"envelopes": [envelope("a1", text="A letter"), envelope("a2", text="Another")]})
    first, second = await stored(bench)
    assert (first.normalized_text, first.subject, first.archive_key) == (None, "A letter", "a1")
    assert (second.normalized_text, second.subject, second.archive_key) == (None, "Another", None)
    assert [job.type for job in await queued(bench)] == ["classify"] * 2


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"key": "gone", "sha256": "0" * 64}, "payload.raw.key"),
        ({"key": "a1", "sha256": "0" * 64}, "payload.raw.sha256"),
    ],
)
async def test_a_reference_that_does_not_hold_is_refused(bench: Bench, raw: dict[str, str], field: str) -> None:
    async with bench.client() as call:
        await call("archive.store", endpoint_identity=ME, messages=[mail("a1", plain_letter())])
        with pytest.raises(BadInput) as refused:
            await call("ingest", envelope("a1", raw=raw))
    assert refused.value.field == field
    assert await counts(bench.database) == (0, 0, 0)


async def test_somebody_elses_archive_is_no_reference(bench: Bench) -> None:
    raw = plain_letter()
    reference = {"key": "a1", "sha256": hashlib.sha256(raw).hexdigest()}
    async with bench.client() as call:
        await call("archive.store", endpoint_identity=ME, messages=[mail("a1", raw)])
        with pytest.raises(BadInput, match=r"holds no such message of you@example\.org"):
            await call("ingest", envelope("a1", identity="you@example.org", raw=reference))


@pytest.mark.req("BF-13")
async def test_a_duplicate_is_a_success_with_the_first_id_however_it_comes(bench: Bench) -> None:
    bare = envelope("a1")
    del bare["control"]["idempotency_key"]
    async with bench.client() as call:
        first = await call("ingest", envelope("a1"))
        again = await call("ingest", bare)
        batch = await call("ingest", {"envelopes": [envelope("b"), bare, envelope("b"), envelope("a1")]})
    assert (again["request_id"], again["duplicate"]) == (first["request_id"], True)
    results = batch["results"]
    assert [result["duplicate"] for result in results] == [False, True, True, True]
    assert results[0]["request_id"] == results[2]["request_id"]
    assert {results[1]["request_id"], results[3]["request_id"]} == {first["request_id"]}
    query = select(ingest_inbox.c.idempotency_key, ingest_inbox.c.duplicates)
    inbox = await bench.database.read(lambda tx: {key: repeats for key, repeats in tx.execute(query)})
    assert inbox == {f"gmail:{ME}:a1": 3, f"gmail:{ME}:b": 1}


async def test_equal_content_is_not_equal_mail(bench: Bench) -> None:
    same = inline(plain_letter("You have a new statement."))
    async with bench.client() as call:
        answers = await call("ingest", {"envelopes": [envelope(f"m{n}", raw=same) for n in range(3)]})
    assert [result["duplicate"] for result in answers["results"]] == [False, False, False]
    assert await counts(bench.database) == (3, 3, 3)


async def test_one_wrong_envelope_does_not_sink_the_others(bench: Bench) -> None:
    wrong = envelope("bad")
    wrong["control"]["policy_tier"] = "urgent"
    gone = envelope("gone", raw={"key": "gone", "sha256": "0" * 64})
    async with bench.client() as call:
        answers = await call("ingest", {"envelopes": [envelope("a"), wrong, gone, {"a": 1}, None, envelope("b")]})
    statuses = [result["status"] for result in answers["results"]]
    assert statuses == ["accepted", "rejected", "rejected", "rejected", "rejected", "accepted"]
    fields = [result["error"]["field"] for result in answers["results"] if result["status"] == "rejected"]
    assert fields == ["control.policy_tier", "payload.raw.key", "schema_version", "envelope"]
    assert {row.external_event_id for row in await stored(bench)} == {"a", "b"}


async def test_text_that_cannot_be_stored_refuses_its_own_envelope_only(bench: Bench) -> None:
    half, nul = envelope("b", text="half of a \ud83d"), envelope("c")
    nul["sender"]["display_name"] = "A\0nn"
    async with bench.client() as call:
        results = (await call("ingest", {"envelopes": [envelope("a"), half, nul, envelope("d")]}))["results"]
    assert [result["status"] for result in results] == ["accepted", "rejected", "rejected", "accepted"]
    assert [result["error"]["field"] for result in results[1:3]] == ["payload.normalized_text", "sender.display_name"]
    assert {row.external_event_id for row in await stored(bench)} == {"a", "d"}


async def test_metadata_is_one_transaction_and_asks_for_nothing_before_or_after(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its contacts are noted and its reply tells of the kill switch all the same."""
    now = bench.queue.clock.now()
    known = {"address": "ann@example.org", "source": "csv", "added_at": now}
    await bench.database.write(lambda tx: tx.execute(contacts.insert().values(known)))

    async def read(transaction: object) -> None:
        raise AssertionError("it read apart from its transaction")

    async with bench.client() as call:
        with monkeypatch.context() as patched:
            patched.setattr(bench.database, "read", read)
            answer = await call("ingest", envelope("a"))
            assert (answer["status"], answer["backfill_enabled"]) == ("accepted", True)
        await bench.database.write(lambda tx: kill_switch.turn(tx, BACKFILL, False, SYSTEM, now))
        assert (await call("ingest", {"envelopes": [envelope("b")]}))["backfill_enabled"] is False
        assert (await call("ingest", {"envelopes": [{}]}))["backfill_enabled"] is False
    met = await bench.database.read(lambda tx: tx.execute(select(contact_mailboxes)).all())
    assert [tuple(row) for row in met] == [(ME, "ann@example.org")]


async def test_a_damaged_message_of_the_archive_does_not_sink_the_others(bench: Bench, tmp_path: Path) -> None:
    keys = [f"a{number:02}" for number in range(60)]
    async with bench.client() as call:
        mails = [mail(key, plain_letter(f"Letter {key}", message_id=f"<{key}@x>"), ["INBOX"]) for key in keys]
        proofs = (await call("archive.store", endpoint_identity=ME, messages=mails))["stored"]
        bench.archive.recent = RecentHeaders()  # as long after it was stored
        with closing(sqlite3.connect(path_of(tmp_path / "archive", ShardName(ME, 2026)))) as connection, connection:
            connection.execute("UPDATE raw SET data = x'00' WHERE id = (SELECT id FROM messages WHERE key = 'a30')")
        sent = [envelope(each["key"], raw={"key": each["key"], "sha256": each["sha256"]}) for each in proofs]
        results = (await call("ingest", {"envelopes": sent}))["results"]
    refused = {key: result["error"]["field"] for key, result in zip(keys, results, strict=True) if "error" in result}
    assert refused == {"a30": "payload"}
    texts = {row.external_event_id: row.normalized_text.strip() for row in await stored(bench)}
    assert texts == {key: f"Letter {key}" for key in keys if key != "a30"}


async def test_a_batch_of_references_reads_the_archive_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    query = ShardReader.query

    def counted(shard: ShardReader, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        asked.append(sql)
        return query(shard, sql, parameters)

    keys = [f"a{number:02}" for number in range(60)]
    async with bench.client() as call:
        mails = [
            mail(key, letter(f"On {key}", f"Letter {key}", attachment=(f"{key}.pdf", b"%PDF")), []) for key in keys
        ]
        proofs = (await call("archive.store", endpoint_identity=ME, messages=mails))["stored"]
        bench.archive.recent = RecentHeaders()  # as long after it was stored
        monkeypatch.setattr(ShardReader, "query", counted)
        sent = [envelope(each["key"], raw={"key": each["key"], "sha256": each["sha256"]}) for each in proofs]
        await call("ingest", {"envelopes": sent})
    assert len(asked) == 3, "which there are, what they are, and whether anything changed meanwhile"
    texts = {row.external_event_id: row.normalized_text.strip() for row in await stored(bench)}
    assert texts == {key: f"Letter {key}" for key in keys}
    files = {row.external_event_id: [each["filename"] for each in row.attachments] for row in await stored(bench)}
    assert files == {key: [f"{key}.pdf"] for key in keys}


async def test_mail_of_one_tier_is_queued_in_the_order_in_which_it_was_accepted(bench: Bench) -> None:
    ids = [f"m{n}" for n in Random(1).sample(range(100), 60)]
    async with bench.client() as call:
        for start in (0, 30):
            some = ids[start : start + 30]
            await call("ingest", {"envelopes": [envelope(one, raw=inline(plain_letter(one))) for one in some]})
    by_id = {row.id: row.external_event_id for row in await stored(bench)}
    assert [by_id[json.loads(job.payload_json)["message_id"]] for job in await queued(bench)] == ids


async def test_the_same_mail_from_many_sides_at_once_is_stored_once(bench: Bench, database_url: str) -> None:
    """Several Switchboards on one database, duplicated and reordered deliveries."""
    others = [await connect(database_url) for _ in range(3)]
    random, ids = Random(7), [f"m{n}" for n in range(60)]
    caller = Caller(Role.CONNECTOR, "test")

    async def deliver(database: Database) -> list[str]:
        queue = type(bench.queue)(database, bench.queue.catalogue, bench.queue.clock)
        ingest = Ingest(database, bench.archive, queue, BACKFILL)
        answers: dict[str, str] = {}
        for _ in range(3):
            some = random.sample(ids, 40)
            for one, result in zip(
                some, (await ingest.take([envelope(one) for one in some], caller)).outcomes, strict=True
            ):
                assert isinstance(result, IngestAccepted)
                assert answers.setdefault(one, result.request_id) == result.request_id
        rest = await ingest.take([envelope(one) for one in ids], caller)
        return [result.request_id for result in rest.outcomes if isinstance(result, IngestAccepted)]

    try:
        answers = await asyncio.gather(*(deliver(database) for database in [bench.database, *others]))
    finally:
        for database in others:
            await database.close()
    assert len(answers[0]) == len(set(answers[0])) == 60
    assert all(answer == answers[0] for answer in answers)
    assert await counts(bench.database) == (60, 60, 60)


@pytest.mark.req("BF-3")
async def test_a_token_for_one_mailbox_brings_mail_of_that_one_only(bench: Bench) -> None:
    async with bench.client(endpoint_identity=ME) as call:
        await call("ingest", envelope("a1"))
        with pytest.raises(NotAllowed, match=f"speaks for {ME} only"):
            await call("ingest", envelope("a2", identity="you@example.org"))
        with pytest.raises(BadInput, match=r"control\.idempotency_key: must begin with gmail:"):
            await call("ingest", envelope("a3", idempotency_key="gmail:you@example.org:a3"))
        with pytest.raises(NotAllowed):
            await call("archive.store", endpoint_identity="you@example.org", messages=[mail("a1", plain_letter())])
    assert (await counts(bench.database))[0] == 1


async def test_envelopes_beside_an_envelope_are_refused(bench: Bench) -> None:
    async with bench.client() as call:
        with pytest.raises(BadInput) as refused:
            await call("ingest", {**envelope("a"), "envelopes": [envelope("b")]})
        assert refused.value.field == "control"
        for wrong in ([], [envelope(str(n)) for n in range(101)], "text"):
            with pytest.raises(BadInput) as refused:
                await call("ingest", {"envelopes": wrong})
            assert refused.value.field == "envelopes"
    assert await counts(bench.database) == (0, 0, 0)


async def test_mail_for_a_channel_that_is_no_mailbox_can_bring_metadata_only(bench: Bench, tmp_path: Path) -> None:
    async with bench.client() as call:
        assert (await call("ingest", envelope("a1", identity="room 7")))["status"] == "accepted"
        with pytest.raises(BadInput) as refused:
            await call("ingest", envelope("a2", identity="room 7", raw=inline(plain_letter())))
    assert refused.value.field == "source.endpoint_identity"


@pytest.mark.req("BF-21")
async def test_full_mail_is_filed_under_the_category_that_decides_how_long_it_is_kept(bench: Bench) -> None:
    bank = b"From: Bank <service@bigbank.example>\r\nSubject: Your account statement for May\r\n\r\n."
    friend = b"From: Ann <ann@example.org>\r\nTo: me@example.org\r\nSubject: dinner\r\n\r\nAt eight?"
    known = {"address": "ann@example.org", "source": "csv", "added_at": bench.queue.clock.now()}
    await bench.database.write(lambda tx: tx.execute(contacts.insert().values(known)))
    async with bench.client() as call:
        await call("ingest", envelope("bank", raw=inline(bank)))
        await call("ingest", envelope("friend", raw=inline(friend)))
        await call("ingest", envelope("metadata"))
    kinds = {row.external_event_id: row.category for row in await stored(bench)}
    assert kinds == {"bank": "finance", "friend": "relationship", "metadata": None}


def mail(gmail_id: str, raw: bytes, labels: list[str] | None = None) -> dict[str, Any]:
    base = {"gmail_id": gmail_id, "internal_date": 1_767_268_800_000, "raw": inline(raw)["base64"]}
    return base if labels is None else {**base, "labels": labels}


class _Overtaken(Ingest):
    """Something else happens between the reading of the archive and the transaction."""

    def __init__(self, *parts: Any, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(*parts)
        self._meanwhile = meanwhile

    async def _store(self, *given: Any) -> Any:
        await self._meanwhile()
        return await super()._store(*given)


async def test_labels_and_deletions_that_change_while_mail_is_taken_in_are_not_lost(bench: Bench) -> None:
    await bench.account()
    service = MailService(bench.database, bench.archive, bench.queue.clock)

    async def meanwhile() -> None:
        await service.change(ME, {"a1": frozenset({"Later"})}, [])
        await service.change(ME, {}, ["a2"])

    taken = _Overtaken(bench.database, bench.archive, bench.queue, BACKFILL, meanwhile=meanwhile)
    given = [envelope(key, raw=inline(plain_letter(key))) for key in ("a1", "a2", "a3")]
    await taken.take(given, Caller(Role.CONNECTOR, "the connector"))
    rows = {row.external_event_id: row for row in await stored(bench)}
    assert {key: row.labels for key, row in rows.items()} == {"a1": ["Later"], "a2": [], "a3": []}
    assert {key for key, row in rows.items() if row.deleted_at_source} == {"a2"}


async def test_what_an_action_changed_leaves_a_change_of_the_same_moment_alone(bench: Bench) -> None:
    account = await bench.account()
    async with bench.client() as call:
        await call("ingest", envelope("a1", raw=inline(plain_letter("a1"))))
    await bench.database.write(lambda tx: record_labels(tx, ME, {"a1": {"INBOX", "Work", "Later"}}))
    before, after = {"INBOX", "Work"}, {"Work", "Paid"}
    await bench.database.write(lambda tx: record_label_change(tx, account.id, "a1", before, after))
    [row] = await stored(bench)
    assert row.labels == ["Later", "Paid", "Work"]


@pytest.mark.req("IM-8")
@pytest.mark.req("IM-8")
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["as it was", "with other line ends"])
async def test_mail_that_was_put_back_is_taken_in_and_not_judged_again(bench: Bench, line_end: bytes) -> None:
    await bench.account()
    raw = plain_letter("See you at eight.").replace(b"\r\n", b"\n")
    as_read = raw.replace(b"\n", line_end)
    async with bench.client() as call:
        await call("ingest", envelope("a1", raw=inline(raw)))
        found = await bench.archive.read(lambda archive: archive.message(ME, "a1"))
        assert found is not None

        def put_back(tx: Tx) -> None:
            run = runs.begin(tx, bench.queue, RestoreOrder.of(ME), SYSTEM)
            runs.add_items(tx, run, [found], None, bench.queue.clock.now())
            [item] = runs.all_items(tx, run.id)
            runs.settle(tx, item, ItemState.APPENDING, bench.queue.clock.now(), wire_sha256=wire_sha256(raw))

        await bench.database.write(put_back)
        before = [job.type for job in await queued(bench)]
        answer = await call("ingest", envelope("a2", raw=inline(as_read)))
        other = await call("ingest", envelope("a3", raw=inline(plain_letter("Another."))))
    assert (answer["status"], other["status"]) == ("accepted", "accepted")
    assert len(await stored(bench)) == 3
    assert [job.type for job in await queued(bench)] == [*before, "classify"]
