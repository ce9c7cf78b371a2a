# ruff: noqa: RUF001 (other forms of letters are what this is about)
"""Words of languages without spaces, and letters in other forms, are found in any archive; an archive from before is
upgraded, and finds what it found until then."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.app.archive_runner import index_waiting
from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import Provenance, ShardName, path_of
from postroom.archive.postgres import reindexing
from postroom.archive.postgres.postgres_archive import PostgresArchive
from postroom.archive.search import Search
from postroom.archive.service import owned_archive
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.words.tokens import words_of
from postroom.domain.clock import ManualClock
from postroom.reading.documents import EXTRACTOR_VERSION
from tests.support.archives import ACCOUNT, FIRST_DAY, fill_shards, prepared_mail
from tests.support.databases import PostgresFactory

pytestmark = pytest.mark.req("FD-6")

CHINESE, JAPANESE, THAI, WIDE, MIXED, KHMER, BURMESE, LAO, LATIN = range(1, 10)
BODIES = {
    CHINESE: "我们明天上午在北京开会,请准时参加。今天天气很好。",
    JAPANESE: "来週の会議は東京で行い\nます。ｶﾞｿﾘﾝの領収書を添付します。",
    THAI: "พรุ่งนี้เราจะกินข้าวที่ร้านอาหารใหม่",
    WIDE: "ＰＯＳＴＲＯＯＭ　２０２６ the o\ufb03ce in der Stra\u00dfe, \U0001d5e6\U0001d5ee\U0001d5f9\U0001d5f2 now",
    MIXED: "新的iPhone手机壳到了",
    KHMER: "ខ្ញុំស្រលាញ់ភាសាខ្មែរ",
    BURMESE: "ကျွန်တော်မြန်မာစကားပြောသည်",
    LAO: "ຂ້ອຍຮຽນພາສາລາວ",
    LATIN: "Nothing but the office in the Strasse: a sale.",
}
FINDS = {
    "北京": [CHINESE],
    "天": [CHINESE],
    "上午在北京开会": [CHINESE],
    "subject:北京": [],
    "京北": [],
    "北京 天气": [CHINESE],
    "北京 -天气": [],
    "会*": [CHINESE, JAPANESE],
    "東京": [JAPANESE],
    "行います": [JAPANESE],
    "ガソリン": [JAPANESE],
    "ｶﾞｿﾘﾝ": [JAPANESE],
    "カソリン": [],
    "ร้านอาหาร": [THAI],
    "ข้าว": [THAI],
    "กินข้าว*": [THAI],
    "กันข้าว": [],
    "postroom": [WIDE],
    "ｐｏｓｔｒｏｏｍ ２０２６": [WIDE],
    "office": [WIDE, LATIN],
    "strasse": [WIDE, LATIN],
    "straße": [WIDE, LATIN],
    "sale": [WIDE, LATIN],
    "iphone": [MIXED],
    "手机": [MIXED],
    "iphone手机": [MIXED],
    "手机iphone": [],
    "的iphone": [MIXED],
    "ភាសា": [KHMER],
    "မြန်မာ": [BURMESE],
    "ພາສາ": [LAO],
}


def numbers(search: Search, query: str) -> list[int]:
    found = search.search(query, accounts=[ACCOUNT]).hits
    return sorted(int(hit.message.subject.removeprefix("Letter ")) for hit in found)


@pytest.fixture
def search(archive_place: ArchiveBackend) -> Iterator[Search]:
    with archive_place.writer("a test") as archive:
        archive.submit(ACCOUNT, [prepared_mail(number, body) for number, body in BODIES.items()]).result()
    with archive_place.search(ManualClock(FIRST_DAY + timedelta(days=10))) as opened:
        yield opened


def test_words_inside_a_sentence_are_found_and_nothing_else(search: Search, archive_place: ArchiveBackend) -> None:
    assert {query: numbers(search, query) for query in FINDS} == FINDS
    assert archive_place.verify().findings == []


def test_snippets_show_and_mark_the_text_as_it_is(search: Search) -> None:
    def marked(query: str) -> list[str]:
        snippet = search.search(query).hits[-1].snippet
        assert snippet.text in " ".join(" ".join(body.split()) for body in BODIES.values())
        return [snippet.text[start:end] for start, end in snippet.marks]

    assert marked("北京") == ["北京"]
    assert marked("天") == ["天", "天", "天"]
    assert marked("行います") == ["行い ます"]
    assert marked("手机") == ["手机"]
    assert marked("iphone") == ["iPhone"]
    assert marked("iphone手机") == ["iPhone手机"]
    assert marked("กินข้าว") == ["กินข้าว"]
    assert marked("postroom") == ["ＰＯＳＴＲＯＯＭ"]
    assert marked("office") == ["o\ufb03ce"]
    assert marked("strasse") == ["Stra\u00dfe"]


def test_messages_are_taken_out_of_the_index_as_they_were_put_in(archive_place: ArchiveBackend) -> None:
    """The source's bytes replace those that were imported before, and what the index had of them."""
    imported, fetched = (prepared_mail(1, BODIES[each]) for each in (CHINESE, THAI))
    imported = imported._replace(mail=replace(imported.mail, provenance=Provenance.IMPORT))
    with archive_place.writer("a test") as archive, archive_place.search() as search:
        archive.submit(ACCOUNT, [imported]).result()
        assert numbers(search, "北京") == [1]
        archive.submit(ACCOUNT, [fetched]).result()
        assert (numbers(search, "北京"), numbers(search, "ข้าว")) == ([], [1])
    assert archive_place.verify().findings == []


OLD_INDEX: Sequence[str] = (
    "DROP TABLE search",
    "DROP VIEW search_texts",
    "CREATE VIRTUAL TABLE search USING fts5 (subject, sender, recipients, cc, bcc, body, filenames, list, attachments, "
    "content = 'texts', content_rowid = 'id', tokenize = \"unicode61 remove_diacritics 2\")",
    "INSERT INTO search (search) VALUES ('rebuild')",
    "PRAGMA user_version = 2",
)


def make_old(root: Path, *years: int) -> None:
    for year in years:
        with closing(sqlite3.connect(path_of(root, ShardName(ACCOUNT, year)), isolation_level=None)) as connection:
            for statement in OLD_INDEX:
                connection.execute(statement)


async def test_the_job_that_reads_attachments_upgrades_old_shards(tmp_path: Path) -> None:
    fill_shards(tmp_path, [prepared_mail(number, BODIES[CHINESE]) for number in (1, 100)])
    make_old(tmp_path, 2024, 2025)
    async with owned_archive(FileArchive(tmp_path), "a test") as archive:
        assert await index_waiting(archive, lambda read: None, lambda: True, EXTRACTOR_VERSION) == (0, False), (
            "its turn is over"
        )
        assert await index_waiting(archive, lambda read: None, lambda: False, EXTRACTOR_VERSION) == (0, True)
    with FileArchive(tmp_path).search() as search:
        assert numbers(search, "北京") == [1, 100]


def test_old_shards_find_what_they_found_and_are_upgraded_one_after_the_other(tmp_path: Path) -> None:
    place = FileArchive(tmp_path)
    with place.writer("a test") as archive:
        archive.submit(ACCOUNT, [prepared_mail(number, "北京 天气很好") for number in (1, 100, 400)]).result()
    make_old(tmp_path, 2024, 2025, 2026)
    with place.search() as search, place.reader() as reader:
        assert reader.index_needs_work(ACCOUNT)
        assert numbers(search, "北京") == numbers(search, "天气很好") == [1, 100, 400], "as they were found before"
        assert numbers(search, "天气") == []
        with place.writer("a test") as archive:
            archive.submit(ACCOUNT, [prepared_mail(101, "天气")]).result()
            assert place.verify().findings == []
            assert archive.improve_index(ACCOUNT)
            assert numbers(search, "天气") == [101, 400], "newest first; a search that was open sees it"
        with place.writer("another, after a crash") as archive:
            assert [archive.improve_index(ACCOUNT) for _ in range(3)] == [True, False, False]
        assert numbers(search, "天气") == [1, 100, 101, 400]
        assert not reader.index_needs_work(ACCOUNT)
    assert place.verify().findings == []


def test_an_old_database_finds_what_it_found_and_is_indexed_anew_in_portions(
    postgres_factory: PostgresFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_factory.empty_url()
    count = 5
    with PostgresArchive(url) as place, monkeypatch.context() as before:
        before.setattr("postroom.archive.postgres.words.indexed_words", words_of)
        with place.writer("a test") as archive:
            archive.submit(ACCOUNT, [prepared_mail(number, "北京 天气很好") for number in range(count)]).result()
        place._connections.query("DROP TABLE archive.reindexing")
        place._connections.query("UPDATE archive.facts SET value = '2' WHERE key = 'version'")
    monkeypatch.setattr(reindexing.reindex_some, "__defaults__", (2,))
    with PostgresArchive(url) as place, place.search() as search, place.reader() as reader:
        assert reader.index_needs_work(ACCOUNT)
        assert numbers(search, "北京") == numbers(search, "天气很好") == list(range(count))
        assert numbers(search, "天气") == []
        assert place.verify().findings == []
        with place.writer("a test") as archive:
            archive.submit(ACCOUNT, [prepared_mail(count, "天气")]).result()
            assert archive.improve_index(ACCOUNT)
            assert numbers(search, "天气") == [4, 5]
            assert numbers(search, "天气很好") == list(range(count))
            assert [archive.improve_index(ACCOUNT) for _ in range(3)] == [True, True, False]
        assert numbers(search, "天气") == list(range(count + 1))
        assert not reader.index_needs_work(ACCOUNT)
        assert place.verify().findings == []
