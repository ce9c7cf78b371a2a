"""The text of attachments is found by search, and every part of every message is indexed or has a reason: the contract,
run over every backend.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from postroom.archive.backend import ArchiveBackend, MailWriter
from postroom.archive.coverage import PartKind, PartState
from postroom.archive.indexing import read_attachments, read_batch
from postroom.archive.messages import IncomingMail, Provenance, ShardName, path_of
from postroom.archive.shards.file_archive import FileArchive
from postroom.mail.mime import Attachment
from postroom.reading.documents import EXTRACTOR_VERSION
from tests.support import documents
from tests.support.archives import ME, place_at, plain_letter
from tests.support.attachments import PER_BATCH, index_all, readable, with_attachments
from tests.support.databases import BACKENDS
from tests.support.reading_faults import break_reading

PASSWORD = "letmein"  # noqa: S105 - of generated files
pytestmark = pytest.mark.req("FD-1", "FD-2")


@pytest.fixture
def archive(archive_place: ArchiveBackend) -> Iterator[MailWriter]:
    with archive_place.writer("a test") as opened:
        yield opened


def found(place: ArchiveBackend, query: str) -> list[str]:
    """The subjects of the messages that a search finds, newest first."""
    with place.search() as search:
        return [hit.message.subject for hit in search.search(query).hits]


def states(place: ArchiveBackend) -> dict[PartState, int]:
    """Of attachments, those that occur; all parts have to add up."""
    with place.reader() as reader:
        counted = reader.coverage()
        listed = {state: len(reader.unindexed(state, 10_000)) for state in PartState if state is not PartState.INDEXED}
        messages = list(reader.newest_first())
        attachments = sum(len(list(reader.attachments_of(message))) for message in messages)
    assert sum(counted.bodies.values()) == len(messages)
    assert sum(counted.attachments.values()) == attachments
    assert counted.parts == sum(counted.by_state.values()) == len(messages) + attachments
    assert listed == {state: count for state, count in counted.by_state.items() if state is not PartState.INDEXED}
    return {state: count for state, count in counted.attachments.items() if count}


@pytest.mark.timeout(120)
def test_text_of_every_kind_of_attachment_is_found(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    files = readable()
    archive.store(ME, [with_attachments(number, [file]) for number, file in enumerate(files.items())])
    assert states(archive_place) == {PartState.WAITS: len(files)}
    assert index_all(archive_place, archive, ME) == len(files)
    for number, name in enumerate(files):
        word = name.partition(".")[0]
        assert found(archive_place, f"attachment:{word}") == [f"Letter {number}"], name
        assert found(archive_place, word) == [f"Letter {number}"], name
        assert found(archive_place, f"filename:{name}") == [f"Letter {number}"], name
    assert states(archive_place) == {PartState.INDEXED: len(files)}


@pytest.mark.timeout(120)
def test_what_cannot_be_read_is_listed_with_the_reason(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    files = {
        "locked.pdf": (documents.pdf("secret", password=PASSWORD), PartState.ENCRYPTED),
        "locked.zip": (documents.locked_zip("a.txt", b"secret"), PartState.ENCRYPTED),
        "scanned.pdf": (documents.pdf(""), PartState.UNSUPPORTED),
        "photo.png": (b"\x89PNG\r\n\x1a\n" + bytes(100), PartState.UNSUPPORTED),
        "program.bin": (bytes(range(256)) * 8, PartState.UNSUPPORTED),
        "broken.pdf": (b"%PDF-1.7\n" + b"\xff" * 500, PartState.UNREADABLE),
        "nothing.txt": (b"", PartState.EMPTY),
        "blank.txt": (b" \n \n", PartState.EMPTY),
    }
    archive.store(ME, [with_attachments(1, [(name, content) for name, (content, _) in files.items()])])
    index_all(archive_place, archive, ME)
    states(archive_place)
    with archive_place.reader() as reader:
        listed = [part for state in PartState for part in reader.unindexed(state, 100)]
    assert {part.filename: part.state for part in listed} == {name: state for name, (_, state) in files.items()}
    assert {part.kind for part in listed} == {PartKind.ATTACHMENT}
    assert read_batch(archive_place, ME) is None, "what has a reason does not wait"


@pytest.mark.timeout(180)
def test_hostile_attachments_are_bounded_and_do_not_hold_up_the_others(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    files = [
        ("bomb.zip", documents.zip_bomb(64 << 20)),
        ("lol.docx", documents.entity_bomb()),
        ("ok.txt", b"soundword"),
    ]
    archive.store(ME, [with_attachments(number, [file]) for number, file in enumerate(files)])
    index_all(archive_place, archive, ME)
    assert found(archive_place, "attachment:soundword") == ["Letter 2"]
    assert PartState.WAITS not in states(archive_place)


def test_words_of_a_query_may_stand_in_the_mail_and_in_its_attachments(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    archive.store(
        ME,
        [
            with_attachments(1, [("a.txt", b"invoice for rhubarb"), ("b.txt", b"delivery note")], "greetings"),
            with_attachments(2, [("c.txt", b"nothing at all")], "invoice greetings"),
            with_attachments(3, [], "rhubarb"),
        ],
    )
    index_all(archive_place, archive, ME)
    asked = {
        "invoice": ["Letter 2", "Letter 1"],
        "invoice greetings": ["Letter 2", "Letter 1"],
        "greetings rhubarb": ["Letter 1"],
        "from:ann attachment:invoice": ["Letter 1"],
        "attachment:greetings": [],
        '"invoice for rhubarb"': ["Letter 1"],
        '"rhubarb delivery"': [],
        "attachment:rhub*": ["Letter 1"],
        "greetings -invoice": [],
        "greetings -attachment:invoice": ["Letter 2"],
        "-attachment:invoice": ["Letter 3", "Letter 2"],
        "attachment:delivery OR subject:3": ["Letter 3", "Letter 1"],
        "filename:invoice": [],
    }
    assert {query: found(archive_place, query) for query in asked} == asked
    with archive_place.search() as search:
        assert {hit.message.subject for hit in search.search("rhubarb", sort="rank").hits} == {"Letter 3", "Letter 1"}
        assert search.count("invoice").messages == 2
        [hit] = search.search("attachment:delivery").hits
    assert (hit.snippet.attachment, hit.snippet.text) == ("b.txt", "delivery note")
    assert [hit.snippet.text[start:end] for start, end in hit.snippet.marks] == ["delivery"]


def test_mail_that_comes_later_waits_and_what_was_read_stays(
    archive_place: ArchiveBackend, archive: MailWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.store(ME, [with_attachments(1, [("a.txt", b"firstword")])])
    assert index_all(archive_place, archive, ME) == 1
    archive.store(ME, [with_attachments(2, [("b.txt", b"secondword")])])
    assert states(archive_place) == {PartState.INDEXED: 1, PartState.WAITS: 1}
    monkeypatch.setattr(Attachment, "content", lambda self: b"secondword" if self.filename == "b.txt" else 1 / 0)
    assert index_all(archive_place, archive, ME) == 1
    assert states(archive_place) == {PartState.INDEXED: 2}


def test_the_newest_attachments_are_read_first(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    archive.store(ME, [with_attachments(number, [("a.txt", b"x")]) for number in (2, 1, 3)])
    batch = read_batch(archive_place, ME, messages=2)
    assert batch is not None
    rest = read_batch(archive_place, ME, batch.last)
    assert rest is not None
    assert [each.message.subject for each in (*batch.messages, *rest.messages)] == ["Letter 3", "Letter 2", "Letter 1"]
    assert read_batch(archive_place, ME, rest.last) is None


def test_recording_again_changes_nothing(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    archive.store(ME, [with_attachments(1, [("a.txt", b"oneword"), ("b.txt", b"otherword")])])
    batch = read_batch(archive_place, ME)
    assert batch is not None
    for _ in range(3):
        archive.record_readings(ME, batch.messages)
    assert states(archive_place) == {PartState.INDEXED: 2}
    assert found(archive_place, "attachment:oneword attachment:otherword") == ["Letter 1"]
    assert archive_place.verify().findings == []


def test_a_message_whose_bytes_are_replaced_loses_the_text_of_its_attachments(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    old = with_attachments(1, [("a.txt", b"oldword")])
    archive.store(ME, [IncomingMail(old.raw, Provenance.IMPORT, old.gmail_id, old.thread_id)])
    stale = read_batch(archive_place, ME)
    index_all(archive_place, archive, ME)
    assert found(archive_place, "oldword") == ["Letter 1"]
    archive.store(ME, [with_attachments(1, [("a.txt", b"newword")])])
    assert found(archive_place, "oldword") == []
    assert states(archive_place) == {PartState.WAITS: 1}
    assert stale is not None
    archive.record_readings(ME, stale.messages)
    assert states(archive_place) == {PartState.WAITS: 1}, "what was read of the old bytes is not recorded"
    index_all(archive_place, archive, ME)
    assert found(archive_place, "newword") == ["Letter 1"]
    assert archive_place.verify().findings == []


def test_a_newer_version_reads_again_what_could_not_be_read(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    files = [("a.txt", b"text"), ("b.bin", bytes(range(256))), ("c.pdf", documents.pdf("x", password=PASSWORD))]
    archive.store(ME, [with_attachments(1, files)])
    index_all(archive_place, archive, ME)
    newer = EXTRACTOR_VERSION + 2
    with archive_place.reader() as reader:
        assert reader.waiting_attachments(ME, None, 10) == []
        [waiting] = reader.waiting_attachments(ME, None, 10, newer)
        assert waiting.numbers == (1,)
        assert reader.coverage(ME, newer).waiting == 1
        assert reader.coverage(ME, newer).parts == reader.coverage(ME).parts == 4


def test_an_unreadable_or_empty_message_is_counted_as_such(
    archive_place: ArchiveBackend, archive: MailWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails = [plain_letter("Hello"), plain_letter("", message_id="<b@example.org>"), plain_letter("x", message_id=None)]
    break_reading(monkeypatch, lambda given: given == mails[2])
    archive.store(ME, [IncomingMail(raw, Provenance.IMPORT) for raw in mails])
    monkeypatch.undo()
    with archive_place.reader() as reader:
        assert reader.coverage(ME).bodies == {PartState.INDEXED: 1, PartState.EMPTY: 1, PartState.UNREADABLE: 1}
        [empty] = reader.unindexed(PartState.EMPTY, 10)
        [unread] = reader.unindexed(PartState.UNREADABLE, 10)
    assert (unread.kind, unread.note[:21]) == (PartKind.BODY, "it could not be read:")
    assert (empty.kind, empty.number, empty.message.message_id) == (PartKind.BODY, None, "<b@example.org>")


def test_the_exact_bytes_stay(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    mail = with_attachments(1, [("a.txt", b"some text")])
    [stored] = archive.store(ME, [mail])
    index_all(archive_place, archive, ME)
    with archive_place.reader() as reader:
        assert reader.raw(ME, stored.key) == mail.raw


def test_a_message_with_more_text_than_the_index_takes_says_so(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    words = [" ".join(f"w{number}x{each}" for each in range(70_000)).encode() for number in range(3)]
    archive.store(ME, [with_attachments(1, [(f"{number}.txt", text) for number, text in enumerate(words)])])
    index_all(archive_place, archive, ME)
    counted = states(archive_place)
    assert counted.keys() <= {PartState.INDEXED, PartState.TOO_LARGE}
    with archive_place.reader() as reader:
        large = {part.number for part in reader.unindexed(PartState.TOO_LARGE, 10)}
    for number in range(3):
        assert bool(found(archive_place, f"attachment:w{number}x69999")) == (number not in large)
    assert found(archive_place, "files") == ["Letter 1"]


@pytest.fixture(params=BACKENDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty archive, as another process opens it: a folder, or a database's address."""
    if request.param == "files":
        return str(tmp_path / "archive")
    url: str = request.getfixturevalue("postgres_factory").empty_url()
    return url


@pytest.mark.parametrize(
    ("messages", "kills"),
    [
        pytest.param(100, 4, marks=pytest.mark.timeout(240)),
        pytest.param(2_500, 40, marks=[pytest.mark.chaos, pytest.mark.timeout(1_500)]),
    ],
)
def test_killed_while_indexing_nothing_is_lost_or_done_twice(where: str, messages: int, kills: int) -> None:
    mails = [
        with_attachments(number, [(f"{part}.txt", f"once{number}n{part} common".encode()) for part in "ab"])
        for number in range(messages)
    ]
    random, read = Random(messages), 0
    with place_at(where) as place:
        with place.writer("a test") as archive:
            archive.store(ME, mails)
        for _ in range(kills):
            read += _index_and_kill(where, random.randrange(1, messages // PER_BATCH // kills + 1))
            assert states(place).get(PartState.INDEXED, 0) >= read > 0, "what was reported is recorded"
        with place.writer("a test") as archive:
            before = states(place).get(PartState.INDEXED, 0)
            assert index_all(place, archive, ME) == 2 * messages - before
        assert states(place) == {PartState.INDEXED: 2 * messages}
        assert place.verify().findings == []
        with place.search() as search:
            assert search.count("attachment:common").messages == messages
            assert all(search.count(f"once{number}na").messages == 1 for number in range(0, messages, 7))


def _index_and_kill(where: str, after: int) -> int:
    """Kill the program after so many batches; returns how many attachments it has reported."""
    command = [sys.executable, "-m", "tests.support.attachments", where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        lines = iter(program.stdout.readline, "")
        assert next(lines).strip() == "ready"
        read = 0
        for _ in range(after):
            line = next(lines).split()
            if line == ["done"]:
                break
            read += int(line[1])
        program.kill()
    return read


def _as_version_1(root: Path, name: ShardName) -> None:
    """As it was before texts of attachments."""
    with closing(sqlite3.connect(path_of(root, name), isolation_level=None)) as connection:
        for statement in (
            "DROP TABLE search",
            "DROP VIEW search_texts",
            "DROP TABLE readings",
            "DROP INDEX texts_blank",
            "ALTER TABLE texts DROP COLUMN attachments",
            "CREATE VIRTUAL TABLE search USING fts5 (subject, sender, recipients, cc, bcc, body, filenames, list, "
            "content = 'texts', content_rowid = 'id', tokenize = \"unicode61 remove_diacritics 2\")",
            "INSERT INTO search (search) VALUES ('rebuild')",
            "PRAGMA user_version = 1",
        ):
            connection.execute(statement)


def test_a_shard_made_before_is_read_and_written_as_it_is_until_its_attachments_are_indexed(tmp_path: Path) -> None:
    place, name = FileArchive(tmp_path), ShardName(ME, 2026)
    with place.writer("a test") as archive:
        archive.store(ME, [with_attachments(1, [("a.txt", b"inside")], "outside")])
    _as_version_1(tmp_path, name)
    before = path_of(tmp_path, name).read_bytes()
    assert found(place, "outside") == ["Letter 1"]
    assert found(place, "attachment:inside") == []
    assert found(place, "outside -attachment:inside") == ["Letter 1"]
    assert states(place) == {PartState.WAITS: 1}
    assert path_of(tmp_path, name).read_bytes() == before, "a reader changes nothing"
    with place.search() as search, place.writer("a test") as archive:
        assert search.count("inside").messages == 0
        archive.store(ME, [with_attachments(2, [("b.txt", b"inside too")], "outside")])
        archive.store(ME, [with_attachments(1, [("a.txt", b"inside")], "outside")])
        assert search.count("outside").messages == 2
        index_all(place, archive, ME)
        assert search.count("attachment:inside").messages == 2, "a search that was open sees it"
    assert states(place) == {PartState.INDEXED: 2}
    assert place.verify().findings == []


def test_damaged_bytes_do_not_stop_the_others(tmp_path: Path) -> None:
    place, name = FileArchive(tmp_path), ShardName(ME, 2026)
    with place.writer("a test") as archive:
        archive.store(ME, [with_attachments(number, [("a.txt", b"inside")]) for number in (1, 2)])
    with closing(sqlite3.connect(path_of(tmp_path, name), isolation_level=None)) as connection:
        connection.execute("UPDATE raw SET data = x'00' WHERE id = (SELECT max(id) FROM raw)")
    with place.writer("a test") as archive:
        index_all(place, archive, ME)
    assert found(place, "inside") == ["Letter 1"]
    assert states(place) == {PartState.INDEXED: 1, PartState.UNREADABLE: 1}
    with place.reader() as reader:
        [broken] = [part for part in reader.unindexed(PartState.UNREADABLE, 10)]
        waiting = reader.waiting_attachments(ME, None, 1, EXTRACTOR_VERSION + 2)
        assert read_attachments(reader, waiting[0]).texts is None
    assert "damaged" in broken.note
