"""What is true of the archive on PostgreSQL alone: nobody owns it, partitions come by themselves, damage is found."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.archive import messages as layout
from postroom.archive.certificates import ArchiveProof, Removal, RemovalAction, RemovalResult
from postroom.archive.messages import IncomingMail, Provenance, StoreOutcome
from postroom.archive.postgres.postgres_archive import PostgresArchive
from postroom.archive.postgres.schema import Partition
from postroom.archive.postgres.verification import PostgresVerification
from postroom.archive.search import Sort, encode_page_token
from postroom.archive.service import open_archive
from postroom.archive.status import ArchiveFlaw, OwnedElsewhere, SyncMark
from postroom.archive.words.tokens import words_of
from postroom.domain.errors import BadInput, NewerSchema, NotFound, Retryable
from postroom.settings import ArchiveSettings, Settings
from tests.support.archives import ME, generated_mail, plain_letter
from tests.support.attachments import with_attachments
from tests.support.databases import PostgresFactory

pytestmark = pytest.mark.req("SY-18")

COUNT = 200
INDEX = sqlite3.connect(":memory:", isolation_level=None)
INDEX.execute("CREATE VIRTUAL TABLE t USING fts5 (x, tokenize = 'unicode61 remove_diacritics 2')")
INDEX.execute("CREATE VIRTUAL TABLE v USING fts5vocab (t, 'instance')")
CUT_OFF = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
    "AND datname = current_database()"
)
NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def url(postgres_factory: PostgresFactory) -> str:
    return postgres_factory.empty_url()


@pytest.fixture
def place(url: str) -> Iterator[PostgresArchive]:
    with PostgresArchive(url) as opened:
        yield opened


def execute(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def writer_process(url: str, count: int, seed: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.archives", url, str(count), seed]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    """What it says, until it is done or dead."""
    assert process.stdout is not None
    for line in process.stdout:
        if line == "done\n":
            return
        if line != "ready\n":
            yield line.strip()


def test_two_processes_that_store_the_same_mail_at_once_keep_one_copy_of_each(url: str, place: PostgresArchive) -> None:
    process = writer_process(url, COUNT, "one")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    told = []
    with place.writer("the other") as archive:
        mails = generated_mail(COUNT)
        for start in range(0, COUNT, 20):
            told += [(stored.key, stored.outcome) for stored in archive.store(ME, mails[start : start + 20])]
    told += [(key, StoreOutcome(outcome)) for key, outcome in map(str.split, lines_of(process))]
    process.communicate("\n")
    outcomes = Counter(told)
    assert len(told) == 2 * COUNT
    assert {key for key, _ in told} == {mail.gmail_id for mail in mails}
    assert all(outcomes[key, StoreOutcome.STORED] == 1 for key, _ in told)
    with place.reader() as reader:
        assert reader.count(ME) == COUNT
        assert all(reader.raw(ME, mail.gmail_id or "") == mail.raw for mail in mails)
    assert place.verify().is_sound


def test_a_killed_writer_loses_nothing_that_it_reported_and_leaves_no_lock(url: str, place: PostgresArchive) -> None:
    process = writer_process(url, 400, "")
    told = []
    for line in lines_of(process):
        told.append(line.split()[0])
        if len(told) == 60:
            process.kill()
    process.communicate()
    with place.reader() as reader:
        found = reader.find_many(ME, told)
        assert sorted(found) == sorted(set(told))
        stored = reader.count(ME)
        assert 60 <= stored < 400
    with place.writer("the next") as archive:
        again = archive.store(ME, generated_mail(400)[: stored + 40])
    assert Counter(answer.outcome for answer in again)[StoreOutcome.DUPLICATE] == stored
    assert place.verify().is_sound


def test_each_month_has_its_partition_and_a_date_of_any_absurdity_too(url: str, place: PostgresArchive) -> None:
    dates = [datetime(*day, tzinfo=UTC) for day in ((1960, 1, 1), (2025, 12, 31), (2026, 1, 1), (9998, 1, 1))]
    with place.writer("a test") as archive:
        mails = [IncomingMail(plain_letter(str(each)), Provenance.IMPORT, received=each) for each in dates]
        archive.store(ME, mails)
    shards = place.shards(ME)
    assert [shard.messages for shard in shards] == [1, 1, 1, 1]
    assert {"1970-01", "2025-12", "2026-01"} < {shard.name for shard in shards}
    assert all(shard.bytes for shard in shards)
    parents = execute(
        url,
        "SELECT DISTINCT inhparent::regclass::text FROM pg_inherits JOIN pg_class ON oid = inhrelid "
        "WHERE relname LIKE 'messages%' AND relkind IN ('r', 'p')",
    )
    assert ("archive.messages_1",) in parents


def test_more_mail_of_one_instant_than_it_has_row_ids_flows_over_into_the_next(
    url: str, place: PostgresArchive
) -> None:
    mails = [IncomingMail(f"Subject: undated {n}\r\n\r\n".encode(), Provenance.IMPORT) for n in range(4)]
    with place.writer("a test") as archive:
        archive.store(ME, mails[:1])
        for table in ("register", "messages"):
            execute(url, f"UPDATE archive.{table} SET id = {layout.SLOTS - 1}")  # noqa: S608
        for mail in mails[1:]:
            archive.store(ME, [mail])
    with place.reader() as reader:
        assert [each.row_id - layout.SLOTS for each in reader.oldest_first(ME)] == [-1, 0, 1, 2]


def test_mail_of_the_last_instant_that_there_is_can_be_read(place: PostgresArchive) -> None:
    mail = IncomingMail(b"Subject: late\r\n\r\n", Provenance.API, "1", received=datetime.max.replace(tzinfo=UTC))
    with place.writer("a test") as archive:
        archive.store(ME, [mail])
    with place.reader() as reader:
        assert [each.date.year for each in reader.newest_first()] == [9999]
        reader.walk(ME, date.min, date.max, None, 10)


def test_names_that_no_database_can_hold_are_found_nowhere(place: PostgresArchive) -> None:
    with place.writer("a test") as archive:
        archive.store(ME, generated_mail(1))
    with place.search() as search, place.reader() as reader:
        for name in ("a\0", "a\ud800"):
            assert search.message(ME, name) is None
            assert search.thread(ME, name).messages == ()
            assert reader.raw(ME, name) is None
            with pytest.raises(NotFound):
                reader.find(f"<{name}>")
        with pytest.raises(BadInput, match="begin again"):
            search.search("x", after=encode_page_token([Sort.DATE, ME, True]))


def test_a_text_of_nothing_but_rare_words_is_found_by_each_and_no_false_alarm(place: PostgresArchive) -> None:
    words = [f"{n:05x}"[::-1] for n in range(33_000)]
    crowd = "".join(chr(0x20000 + n) + (" " if n % 3 == 0 else "") for n in range(20_000))  # four bytes each
    heads = [f"{name}: {crowd} <a@b.example>" for name in ("Subject", "From", "To", "Cc", "Bcc")]
    ordinary = IncomingMail(f"Subject: list\r\n\r\n{' '.join(words)}".encode(), Provenance.IMPORT)
    hostile = IncomingMail("\r\n".join([*heads, "", " ".join(words)]).encode(), Provenance.IMPORT)
    with place.writer("a test") as archive:
        archive.store(ME, [ordinary, hostile])
    with place.search() as search:
        assert search.count(f"subject:list {words[-1]}").messages == 1
    assert place.verify().findings == []


def test_a_database_that_goes_away_is_no_proof_of_damage(url: str, place: PostgresArchive) -> None:
    with place.writer("a test") as archive:
        archive.store(ME, generated_mail(3))
    rows = PostgresVerification._rows

    def interrupted(self: PostgresVerification, month: Partition) -> Iterator[tuple[object, ...]]:
        for row in rows(self, month):
            execute(url, CUT_OFF)
            yield row

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresVerification, "_rows", interrupted)
        with pytest.raises(Retryable):
            place.verify()
    assert place.verify().is_sound


def test_what_was_fetched_again_since_it_was_found_wrong_is_not_set_aside(url: str, place: PostgresArchive) -> None:
    with place.writer("a test") as archive:
        [stored] = archive.store(ME, generated_mail(1))
    [(data,)] = execute(url, "SELECT data FROM archive.messages")
    execute(url, "UPDATE archive.messages SET data = 'x'")
    report = place.verify()
    assert {finding.flaw for finding in report.findings} == {ArchiveFlaw.BYTES_WRONG}
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE archive.messages SET data = %s", (data,))
    assert [each.lost for each in place.repair(report).rebuilt] == [0]
    with place.reader() as reader:
        assert reader.raw(ME, stored.key) == generated_mail(1)[0].raw


def test_a_changed_row_a_lost_row_and_a_lost_month_are_found_and_what_can_be_is_repaired(
    url: str, place: PostgresArchive
) -> None:
    days = ["Thu, 01 Jan 2026", "Fri, 02 Jan 2026", "Sun, 01 Feb 2026", "Sun, 01 Mar 2026", "Mon, 02 Mar 2026"]
    mails = [
        IncomingMail(plain_letter(day, message_id=f"<{n}@x>", date=day), Provenance.API, f"18c200000000000{n}")
        for n, day in enumerate(days)
    ]
    with place.writer("a test") as archive:
        archive.store(ME, mails)
    place.write_mark(ME, SyncMark("account", 1))
    execute(url, "UPDATE archive.messages SET data = 'x', codec = 'plain' WHERE key LIKE '%0'")
    execute(
        url, "UPDATE archive.entries SET tokens = '' WHERE id = (SELECT id FROM archive.register WHERE key LIKE '%1')"
    )
    execute(url, "DROP TABLE archive.messages_1_2026_02")
    execute(url, "DELETE FROM archive.messages WHERE key LIKE '%3'")
    found = {(finding.flaw, finding.shard, finding.key) for finding in place.verify().findings}
    assert found == {
        (ArchiveFlaw.BYTES_WRONG, f"{ME}/2026-01", "18c2000000000000"),
        (ArchiveFlaw.INDEX_WRONG, f"{ME}/2026-01", "18c2000000000001"),
        (ArchiveFlaw.SHARD_MISSING, f"{ME}/2026-02", None),
        (ArchiveFlaw.SHARD_SHORT, f"{ME}/2026-03", None),
    }
    repair = place.repair(place.verify())
    assert [(each.shard, each.recovered, each.lost) for each in repair.rebuilt] == [(f"{ME}/2026-01", 1, 1)]
    assert repair.to_sync == [ME]
    assert place.read_mark(ME) is None
    assert execute(url, "SELECT message->>'key' FROM archive.quarantine") == [("18c2000000000000",)]
    with place.writer("the next sync") as archive:
        assert archive.known_gmail_ids(ME, [mail.gmail_id or "" for mail in mails]) == {
            "18c2000000000001",
            "18c2000000000004",
        }
        archive.store(ME, mails)
    with place.reader() as reader:
        assert [reader.raw(ME, mail.gmail_id or "") for mail in mails] == [mail.raw for mail in mails]
    assert {finding.flaw for finding in place.verify().findings} == {ArchiveFlaw.LOST_BEFORE}


def test_certificates_are_kept_once_and_never_changed(url: str, place: PostgresArchive) -> None:
    removal = Removal(RemovalAction.LABEL, "INBOX")
    proofs = [ArchiveProof(f"18c{n}", f"18c{n}", "aa" * 32, 100, f"{ME}/2026-01", n, Provenance.API) for n in range(3)]
    with place.certificates(ME) as book:
        first = book.certify("b1", removal, proofs, 1_000, NOW)
        again = book.certify("b2", removal, proofs[:1], 2_000, NOW)
        assert again[0].number == first[0].number
        book.settle(first[:2], RemovalResult.REMOVED, "", NOW)
        assert [each.proof for each in book.open()] == proofs[2:]
    ledger = place.ledger(ME)
    assert ledger.counts() == {RemovalResult.REMOVED: 2, RemovalResult.INTENDED: 1}
    assert ledger.certified(["18c0", "18c9"]) == {"18c0"}
    assert ledger.removed_among(removal, ["18c0", "18c2"]) == {"18c0"}
    assert ledger.intended_among(removal, ["18c2"]) == {first[2].number}
    assert [each.number for each in ledger.certificates(before=first[2].number, limit=1)] == [first[1].number]
    assert place.ledger("other@example.org").counts() == {}
    for change in ("UPDATE archive.certificates SET size = 0", "DELETE FROM archive.outcomes"):
        with pytest.raises(psycopg.Error, match="never changed"):
            execute(url, change)


def test_one_archiver_at_a_time_serves_an_account_and_others_are_free(url: str, place: PostgresArchive) -> None:
    with PostgresArchive(url) as elsewhere, place.one_archiver(ME):
        with pytest.raises(OwnedElsewhere, match="Another `postroom archive run`"), elsewhere.one_archiver(ME):
            pass
        with elsewhere.one_archiver("other@example.org"):
            pass
    assert place.sync_holder != elsewhere.sync_holder


def test_an_archiver_whose_connection_broke_hears_of_it_before_it_removes_anything(
    url: str, place: PostgresArchive
) -> None:
    with place.one_archiver(ME) as still_alone:
        still_alone()
        execute(url, CUT_OFF)
        with pytest.raises(Retryable, match="run it again"):
            still_alone()
    with place.one_archiver(ME) as still_alone:
        still_alone()


def test_phrases_are_exact_also_in_mail_with_more_words_than_the_index_has_places(place: PostgresArchive) -> None:
    crowd = ", ".join(f"p{n}@crowd.example" for n in range(400))
    head = f"From: a@example.org\r\nTo: {crowd}, ann@late.example\r\nSubject: crowd\r\n"
    body = " ".join(f"w{n}" for n in range(20_000)) + " the very end"
    with place.writer("a test") as archive:
        archive.store(ME, [IncomingMail(f"{head}\r\n{body}".encode(), Provenance.IMPORT)])
    queries = {'"very end"': 1, '"end very"': 0, "to:p399@crowd.example": 1, "to:p3@late.example": 0, "w19999": 1}
    with place.search() as search:
        assert {query: search.count(query).messages for query in queries} == queries


def test_a_word_of_any_length_and_script_is_stored_and_found(place: PostgresArchive) -> None:
    words = ["日本" * 5_000, "x" * 9_000, "it's", "back\\slash", "naïve", "\U0001f600smile"]
    with place.writer("a test") as archive:
        archive.store(ME, [IncomingMail(f"Subject: odd\r\n\r\n{' '.join(words)}\r\n".encode(), Provenance.IMPORT)])
    with place.search() as search:
        for query in ("x" * 9_000, "日本" * 5_000, '"it\'s back slash"', "naive", "smile"):
            assert search.count(query).messages == 1, query[:20]
        assert search.count("x" * 8_999).messages == 0


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=40))
def test_words_are_cut_as_the_file_archives_index_cuts_them(text: str) -> None:
    text = text.replace("\0", " ").encode("utf-8", "replace").decode()
    INDEX.execute("DELETE FROM t")
    INDEX.execute("INSERT INTO t VALUES (?)", (text,))
    cut = [term for (term,) in INDEX.execute('SELECT term FROM v ORDER BY "offset"')]
    assert words_of(text) == cut


def test_a_server_that_went_away_is_told_and_found_again(url: str, place: PostgresArchive) -> None:
    with place.writer("a test") as archive:
        archive.store(ME, generated_mail(5))
        with ExitStack() as several:
            for _ in range(3):
                several.enter_context(place._connections.session())
        execute(url, CUT_OFF)
        with pytest.raises(Retryable, match="cannot be used now"):
            archive.store(ME, generated_mail(5))
        assert {each.outcome for each in archive.store(ME, generated_mail(5))} == {StoreOutcome.DUPLICATE}


def test_an_archive_of_a_newer_postroom_is_refused(url: str, place: PostgresArchive) -> None:
    execute(url, "UPDATE archive.facts SET value = '99' WHERE key = 'version'")
    with pytest.raises(NewerSchema, match="Upgrade Postroom"):
        PostgresArchive(url)


@pytest.mark.req("FD-1")
def test_what_waits_is_found_by_indexes_which_an_older_archive_gets_when_it_is_opened(
    url: str, place: PostgresArchive
) -> None:
    with place.writer("a test") as archive:
        archive.store(ME, [with_attachments(number, [("a.txt", b"x")]) for number in range(5)])
    for name in ("entries_attached", "readings_again"):
        execute(url, f"DROP INDEX archive.{name}")
    with PostgresArchive(url) as older:
        # Two that the index promises something of, and that have nothing: they hide no other.
        execute(url, "UPDATE archive.messages SET attachments = '[]' WHERE subject IN ('Letter 4', 'Letter 3')")
        with older.reader() as reader:
            waiting = reader.waiting_attachments(ME, None, 2)
        assert [each.message.subject for each in waiting] == ["Letter 2", "Letter 1"]
    names = execute(url, "SELECT indexname FROM pg_indexes WHERE schemaname = 'archive'")
    assert {("entries_attached",), ("readings_again",)} <= set(names)


def test_a_database_archive_on_sqlite_is_refused_with_the_remedy(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("home")
    with pytest.raises(BadInput, match=r"archive.store.*needs PostgreSQL: set database.url"):
        open_archive(Settings(home=home, archive=ArchiveSettings(store="database")))
