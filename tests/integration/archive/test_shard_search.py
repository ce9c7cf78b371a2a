"""Search over shards alone: parts of a year, damaged and foreign files, writers at work."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from postroom.archive.importing import run as import_run
from postroom.archive.importing.run import import_mail
from postroom.archive.importing.sources import open_mbox
from postroom.archive.messages import ShardName, path_of
from postroom.archive.search import Search, SearchPage
from postroom.archive.shards import reader as shard_reader
from postroom.archive.shards import search_reader, shard_file
from postroom.archive.shards import writer as shards_writer
from postroom.archive.shards.reader import FileArchiveReader, ShardReader, shards_on_disk
from postroom.archive.shards.searching import search_shards
from postroom.archive.shards.shard_file import is_scattered, open_for_reading, open_for_writing
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, Fatal, Retryable
from tests.support.archives import ACCOUNT, FIRST_DAY, OTHER, fill_shards, plain_letter, prepared_mail
from tests.support.mail import write_mbox

pytestmark = pytest.mark.req("SY-15")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def search(root: Path) -> Iterator[Search]:
    with search_shards(root, ManualClock(FIRST_DAY + timedelta(days=10))) as opened:
        yield opened


def subjects(page: SearchPage) -> list[str]:
    return [hit.message.subject for hit in page.hits]


def test_mail_of_the_same_instant_is_on_one_page_only(root: Path, search: Search) -> None:
    for account in (ACCOUNT, OTHER):
        fill_shards(root, [prepared_mail(1)], account=account)
        fill_shards(root, [prepared_mail(1)], account=account, part=2)
    seen, token = [], None
    for _ in range(4):
        page = search.search("", limit=1, after=token)
        seen.append(page.hits[0].message.shard)
        token = page.next
    assert token is None
    assert seen == [f"{account}/2024{part}.db" for account in (ACCOUNT, OTHER) for part in ("", "-2")]


def test_a_thread_is_found_over_all_shards_of_its_account(root: Path, search: Search) -> None:
    fill_shards(root, [prepared_mail(number, thread="t1") for number in (0, 1, 2, 3)])
    fill_shards(root, [prepared_mail(4, "", "TRASH", thread="t1"), prepared_mail(5, thread="t2")], part=2)
    fill_shards(root, [prepared_mail(6, thread="t1")], account=OTHER)
    thread = search.thread(ACCOUNT, "t1")
    assert [message.subject for message in thread.messages] == [f"Letter {number}" for number in range(5)]
    assert search.thread(ACCOUNT, "unknown").messages == ()


def test_a_message_that_may_be_in_a_damaged_shard_is_not_said_to_be_missing(root: Path, search: Search) -> None:
    fill_shards(root, [prepared_mail(0), prepared_mail(5)])
    damaged = path_of(root, ShardName(ACCOUNT, 2024))
    damaged.write_bytes(b"\xff" * 50_000)
    assert search.message(ACCOUNT, f"{5:016x}") is not None
    with pytest.raises(Fatal, match="cannot be read"):
        search.message(ACCOUNT, f"{0:016x}")


def test_a_damaged_shard_is_named_and_the_others_are_searched(root: Path, search: Search) -> None:
    fill_shards(root, [prepared_mail(0, "lunch"), prepared_mail(5, "lunch")])
    damaged = path_of(root, ShardName(ACCOUNT, 2024))
    damaged.write_bytes(damaged.read_bytes()[:5_000] + b"\xff" * 50_000)
    for page in (search.search("lunch"), search.search("lunch", sort="rank")):
        assert subjects(page) == ["Letter 5"]
        [problem] = page.problems
        assert problem.shard == f"{ACCOUNT}/2024.db"
        assert "postroom verify" in problem.problem
    assert search.count("lunch").problems
    assert search.thread(ACCOUNT, "t").problems


def test_a_shard_of_a_newer_version_or_of_another_program_is_named(root: Path, search: Search) -> None:
    fill_shards(root, [prepared_mail(0, "lunch"), prepared_mail(5, "lunch"), prepared_mail(400, "lunch")])
    with sqlite3.connect(path_of(root, ShardName(ACCOUNT, 2024))) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with sqlite3.connect(path_of(root, ShardName(ACCOUNT, 2026))) as connection:
        connection.execute("PRAGMA application_id = 7")
    connection.close()
    page = search.search("lunch")
    assert subjects(page) == ["Letter 5"]
    newer, foreign = page.problems
    assert "Upgrade Postroom" in newer.problem
    assert "not a shard" in foreign.problem


def test_a_shard_that_was_rebuilt_is_read_anew(root: Path, search: Search) -> None:
    fill_shards(root, [prepared_mail(5, "lunch")])
    assert subjects(search.search("lunch")) == ["Letter 5"]
    path_of(root, ShardName(ACCOUNT, 2025)).rename(root / "old.db")
    fill_shards(root, [prepared_mail(6, "lunch")])
    assert subjects(search.search("lunch")) == ["Letter 6"]


def test_a_search_goes_on_while_a_writer_holds_the_shard(root: Path, search: Search) -> None:
    fill_shards(root, [prepared_mail(1, "lunch")])
    name = ShardName(ACCOUNT, 2024)
    writer = open_for_writing(path_of(root, name), name)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE messages SET subject = 'changed'")
    assert subjects(search.search("lunch")) == ["Letter 1"]
    writer.execute("COMMIT")
    assert subjects(search.search("lunch")) == ["changed"]
    assert writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    writer.close()


def test_a_closed_search_says_so(root: Path) -> None:
    fill_shards(root, [prepared_mail(1)])
    search = search_shards(root)
    search.search("")
    search.close()
    with pytest.raises(Retryable, match="closed"):
        search.search("")


def test_a_query_that_takes_too_long_is_given_up(root: Path) -> None:
    fill_shards(root, [prepared_mail(number, "lunch") for number in range(30)])

    class Hasty(ManualClock):
        def monotonic(self) -> float:
            self.advance(1)
            return super().monotonic()

    with search_shards(root, Hasty(), patience_s=0.5) as search:
        with pytest.raises(BadInput, match="takes too long"):
            search.count(" ".join(f"lunch OR larger:{number}" for number in range(300)))
        assert search.search("lunch").problems == ()


def segments(root: Path) -> list[list[int]]:
    """The sizes of the index's segments, by shard."""
    readers = [ShardReader(root, name) for name in shards_on_disk(root)]
    try:
        return [reader.segments() for reader in readers]
    finally:
        for reader in readers:
            reader.close()


def test_after_an_import_each_shard_has_its_index_in_one_piece(
    root: Path, search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_run, "BATCH_MESSAGES", 10)
    monkeypatch.setattr(shard_file, "_LEAST_MERGED_PAGES", 1)
    write_mbox(tmp_path / "mail.mbox", [plain_letter(f"word{number}", message_id=None) for number in range(60)])
    with FileArchiveWriter(root) as archive:
        import_mail(archive, ACCOUNT, open_mbox(tmp_path / "mail.mbox"))
    assert {len(each) for each in segments(root)} == {1}
    assert len(search.search("word7").hits) == 1


def test_an_index_is_not_merged_while_an_import_goes_on_and_again_bit_by_bit_after_it(
    root: Path, search: Search
) -> None:
    with FileArchiveWriter(root) as archive:
        for number in range(2, 22):
            archive.submit(ACCOUNT, [prepared_mail(number, f"word{number}")], bulk=True).result()
        assert segments(root) == [[1] * 20]
    with FileArchiveWriter(root) as archive:  # the import was killed: nothing was merged at its end
        archive.submit(ACCOUNT, [prepared_mail(22, "word22")]).result()
        assert len(segments(root)[0]) < 5
    assert [len(search.search(f"word{number}").hits) for number in range(2, 23)] == [1] * 21


def test_mail_that_comes_newest_first_is_one_segment_of_the_index(root: Path, search: Search) -> None:
    with FileArchiveWriter(root) as archive:
        newest_first = [prepared_mail(number, f"word{number}") for number in range(20, 1, -1)]
        stored = archive.submit(ACCOUNT, newest_first).result()
    assert segments(root) == [[1]]
    assert [each.key for each in stored] == [mail.key for mail in newest_first]
    assert all(earlier.row_id > later.row_id for earlier, later in pairwise(stored))
    assert [subjects(search.search(f"word{number}")) for number in (2, 20)] == [
        [mail.subject] for mail in (newest_first[-1], newest_first[0])
    ]


def test_an_index_is_merged_bit_by_bit_after_an_import_whose_last_transaction_failed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: object, insertion: object) -> None:
        raise ValueError("broken")

    name = ShardName(ACCOUNT, 2024)
    shard = shards_writer.ShardWriter(path_of(root, name), name)
    with pytest.raises(ValueError, match="broken"):
        shard.change(fail, bulk=True).result()
    for number in range(20):
        shard.store([prepared_mail(number)]).result()
    assert len(segments(root)[0]) < 10
    shard.close()


@pytest.mark.parametrize("page_bytes", [4 << 10, 8 << 10])
def test_the_log_of_a_shard_grows_as_long_whatever_its_pages(
    root: Path, page_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_file, "_PAGE_BYTES", page_bytes)
    name = ShardName(ACCOUNT, 2024)
    connection = open_for_writing(path_of(root, name), name)
    [[page], [pages]] = [
        connection.execute(f"PRAGMA {each}").fetchone() for each in ("page_size", "wal_autocheckpoint")
    ]
    assert (page, page * pages) == (page_bytes, 16 << 20)
    connection.close()


def test_an_import_of_a_little_mail_writes_no_index_anew(root: Path, tmp_path: Path) -> None:
    for number in range(2):
        write_mbox(tmp_path / f"{number}.mbox", [plain_letter(f"word{number}")])
        with FileArchiveWriter(root) as archive:
            import_mail(archive, ACCOUNT, open_mbox(tmp_path / f"{number}.mbox"))
    assert {len(each) for each in segments(root)} == {2}


def test_an_import_is_complete_where_its_index_cannot_be_merged(
    root: Path, search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(import_run, "BATCH_MESSAGES", 10)
    monkeypatch.setattr(shard_file, "_LEAST_MERGED_PAGES", 1)
    monkeypatch.setattr(shards_writer, "merge_segments", fail)
    write_mbox(tmp_path / "mail.mbox", [plain_letter(f"word{number}", message_id=None) for number in range(60)])
    with FileArchiveWriter(root) as archive:
        assert import_mail(archive, ACCOUNT, open_mbox(tmp_path / "mail.mbox")).stored == 60
    assert len(search.search("word7").hits) == 1


def test_an_index_that_came_in_many_pieces_is_merged_in_the_background(
    root: Path, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_file, "_LEAST_MERGED_PAGES", 1)
    with FileArchiveWriter(root) as archive:
        for number in range(3):
            archive.submit(ACCOUNT, [prepared_mail(number, f"word{number}")]).result()
        with FileArchiveReader(root) as reader:
            assert reader.index_needs_work(ACCOUNT)
        before = [subjects(search.search(f"word{number}")) for number in range(3)]
        assert not archive.improve_index(ACCOUNT)
        assert {len(each) for each in segments(root)} == {1}
        with FileArchiveReader(root) as reader:
            assert not reader.index_needs_work(ACCOUNT)
    assert [subjects(search.search(f"word{number}")) for number in range(3)] == before


def test_a_shard_that_lacks_indexes_by_size_finds_the_same_and_gets_them_in_the_background(
    root: Path, search: Search
) -> None:
    queries = ["larger:10K", "larger:10K word", "larger:1M word", "larger:20K -other", "larger:64K word"]
    texts = {1: "word", 2: "word " * 3_000, 100: "word " * 20_000, 101: "other " * 3_000, 102: "word " * 250_000}
    fill_shards(root, [prepared_mail(number, text) for number, text in texts.items()])
    for name in shards_on_disk(root):
        with sqlite3.connect(path_of(root, name)) as connection:
            connection.execute("DROP INDEX messages_10k")
            connection.execute("DROP INDEX messages_1m")
    before = [subjects(search.search(query)) for query in queries]
    assert [len(found) for found in before] == [4, 3, 1, 2, 2]
    with FileArchiveWriter(root) as archive, FileArchiveReader(root) as reader:
        assert reader.index_needs_work(ACCOUNT)
        assert [archive.improve_index(ACCOUNT) for _ in range(3)] == [True, False, False]
        assert not reader.index_needs_work(ACCOUNT)
    assert [subjects(search.search(query)) for query in queries] == before, "a search that was open uses them"


@pytest.mark.parametrize("most", [0, 2, 16_384])
def test_however_many_messages_are_large_the_same_is_found(
    root: Path, search: Search, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(search_reader, "_SHORT", most)
    sizes = {1: 3_000, 2: 11_000, 100: 11_000, 101: 70_000, 102: 70_000}
    fill_shards(root, [prepared_mail(number, f"word {'x' * size}") for number, size in sizes.items()])
    assert subjects(search.search("larger:10K word")) == [f"Letter {number}" for number in (102, 101, 100, 2)]
    assert subjects(search.search("larger:65K word OR larger:2M")) == ["Letter 102", "Letter 101"]


@pytest.mark.parametrize("query", ["word", "in:inbox word", "larger:10K word", "word OR in:inbox", "-other"])
@pytest.mark.parametrize("newest", [0, 1, 5])
def test_a_year_after_one_with_few_hits_is_read_upwards_and_finds_the_same(
    root: Path, search: Search, query: str, newest: int
) -> None:
    """With `newest` hits in the newest of three years, 30 in the next, and 4 in the oldest."""
    numbers = [400 + number for number in range(newest)] + [100 + number for number in range(30)] + [0, 1, 2, 3]
    others = [prepared_mail(number, "other") for number in (450, 200)]
    fill_shards(root, [prepared_mail(number, f"word {'x' * 11_000}", "INBOX") for number in numbers] + others)
    expected = [f"Letter {number}" for number in sorted(numbers, reverse=True)]
    for limit in (1, 4, 11, 29, 31, 40):
        found, token = list[str](), None
        while True:
            page = search.search(query, limit=limit, after=token)
            found += subjects(page)
            token = page.next
            if token is None:
                break
        assert found == expected


def test_a_year_is_read_upwards_where_the_one_before_had_few_hits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_shards(root, [prepared_mail(number, "word") for number in (0, 1, 100, 400)])
    statements: list[str] = []

    def traced(path: Path) -> sqlite3.Connection:
        connection = open_for_reading(path)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(shard_reader, "open_for_reading", traced)
    with search_shards(root) as search:
        assert len(search.search("word").hits) == 4
    orders = [one.partition("ORDER BY 1")[2] for one in statements if one.startswith("SELECT driver.rowid")]
    assert orders == [" DESC LIMIT 21", " LIMIT 20", " LIMIT 19"]


@pytest.mark.parametrize(
    ("sizes", "is_time"),
    [([], False), ([500], False), ([500, 63], False), ([500, 125], True), ([60, 4], False), ([40, 40, 40], True)],
)
def test_segments_are_merged_once_what_is_new_is_a_quarter_of_the_index(sizes: list[int], *, is_time: bool) -> None:
    assert is_scattered(sizes) is is_time
