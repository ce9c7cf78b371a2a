"""Both archives put the same mail in the same order, whichever years it lies in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.postgres.postgres_archive import PostgresArchive
from postroom.archive.preparing import PreparedMail, prepare
from postroom.archive.search import Search
from postroom.archive.shards import ranking as shards_ranking
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.words.ranking import MOST_CHARACTERS
from postroom.archive.words.tokens import folded_words
from tests.support.archives import ACCOUNT, FIRST_DAY, OTHER, prepared_mail
from tests.support.attachments import with_attachments
from tests.support.databases import PostgresFactory
from tests.support.mail import letter

pytestmark = pytest.mark.req("FD-7")

COUNT = 400
COMMON = ["the", "invoice", "of", "may", "for", "lunch", "and", "the", "meeting", "with", "ann", "about", "budget"]
RARE = ["kestrel", "harbour", "lantern", "quince", "origami", "zephyr", "juniper", "cobalt", "会議", "天気予報"]
QUERIES = (
    "invoice",
    "kestrel",
    "kestrel lunch",
    "harbour OR lantern",
    '"the meeting"',
    "meet*",
    "subject:budget lunch",
    "from:ann invoice",
    "to:harbour",
    "quince -lunch",
    "天気",
    "会議 budget",
    "(kestrel OR origami) (may OR lunch)",
    "after:2025/06/01 lunch juniper",
    "in:spam zephyr invoice",
    "has:attachment",
)


def generated(count: int = COUNT) -> list[PreparedMail]:
    """Short and long mail, over three years, some of it as spam; the seed is always the same."""
    random = Random(7)
    mails = []
    for number in range(count):
        words = random.choices([*COMMON * 4, *RARE], k=random.randint(3, 300))
        raw = letter(
            " ".join(random.choices([*COMMON, *RARE], k=random.randint(1, 6))),
            " ".join(words),
            sender=f"{random.choice(['Ann', 'Ben', 'Kestrel'])} <x{number % 7}@{random.choice(RARE[:4])}.example>",
            to=f"someone@{random.choice(RARE[:4])}.example",
            headers={"Message-ID": f"<{number}@x.example>"},
        )
        labels = frozenset({"SPAM"} if number % 9 == 0 else {"INBOX"})
        received = FIRST_DAY + timedelta(days=number * 2, seconds=number)
        mails.append(prepare(IncomingMail(raw, Provenance.API, f"{number:016x}", None, labels, received)))
    return mails


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, postgres_factory: PostgresFactory
) -> Iterator[tuple[Search, Search]]:
    mails = generated()
    root: Path = tmp_path_factory.mktemp("archive")
    with FileArchive(root) as files, PostgresArchive(postgres_factory.empty_url()) as tables:
        for place in (files, tables):
            _fill(place, mails)
        with files.search() as first, tables.search() as second:
            yield first, second


def _fill(place: ArchiveBackend, mails: list[PreparedMail]) -> None:
    with place.writer("a test") as archive:
        archive.submit(ACCOUNT, mails[::2]).result()
        archive.submit(OTHER, mails[1::2]).result()


def ranked(search: Search, query: str) -> list[str]:
    """All pages, as lists of keys."""
    keys, after = list[str](), None
    while after is not None or not keys:
        page = search.search(query, sort="rank", limit=200, after=after)
        keys += [hit.message.key for hit in page.hits]
        after = page.next
        if after is None:
            break
    return keys


@pytest.mark.parametrize("query", QUERIES)
def test_both_archives_rank_the_same_mail_alike(both: tuple[Search, Search], query: str) -> None:
    files, tables = (ranked(search, query) for search in both)
    assert files == tables
    assert len(set(files)) == len(files) == both[0].count(query).messages


def test_rare_words_subjects_and_short_mail_count_for_more(both: tuple[Search, Search]) -> None:
    for search in both:
        [first, *_] = search.search("kestrel lunch", sort="rank").hits
        assert "kestrel" in f"{first.message.subject} {first.message.sender}".lower()
        assert ranked(search, "kestrel") != [hit.message.key for hit in search.search("kestrel", limit=500).hits]


def test_text_of_attachments_counts_once_in_both(archive_place: ArchiveBackend) -> None:
    from tests.support.attachments import index_all

    with archive_place.writer("a test") as archive:
        archive.store(
            ACCOUNT,
            [
                with_attachments(1, [("a.txt", b"kestrel " * 50)], "nothing"),
                with_attachments(2, [("b.txt", b"nothing")], "a kestrel"),
                with_attachments(3, [("c.txt", b"kestrel")], "a kestrel"),
            ],
        )
        index_all(archive_place, archive, ACCOUNT)
    with archive_place.search() as search:
        found = [hit.message.subject for hit in search.search("kestrel", sort="rank").hits]
    assert found == ["Letter 3", "Letter 2", "Letter 1"]


def test_a_very_long_message_is_counted_only_up_to_a_bound(archive_place: ArchiveBackend) -> None:
    """Else a thousand candidates of megabytes each would be cut into words for one search."""
    filler = "nothing " * (MOST_CHARACTERS // 8)
    with archive_place.writer("a test") as archive:
        archive.submit(
            ACCOUNT,
            [
                prepared_mail(1, f"kestrel {filler}"),
                prepared_mail(2, f"kestrel {filler} {'kestrel ' * 200}"),
                prepared_mail(3, f"kestrel kestrel kestrel {filler}"),
            ],
        ).result()
    with archive_place.search() as search:
        [first, *_] = search.search("kestrel", sort="rank").hits
    assert first.message.subject == "Letter 3"


def test_very_many_messages_are_estimated_and_the_order_stays_much_the_same(
    both: tuple[Search, Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's estimates differ from what it would count, and so may a few places: not the first ones."""
    monkeypatch.setattr("postroom.archive.postgres.ranking._EXACT", 10)
    for query in ("kestrel lunch", "会議 budget"):
        files, tables = (ranked(search, query) for search in both)
        assert set(files) == set(tables)
        assert tau(files, tables) > 0.9


def tau(left: list[str], right: list[str]) -> float:
    """Kendall's: 1 for the same order, -1 for the opposite."""
    place = {key: number for number, key in enumerate(right)}
    numbers = [place[key] for key in left]
    pairs = [(a, b) for index, a in enumerate(numbers) for b in numbers[index + 1 :]]
    return sum(1 if a < b else -1 for a, b in pairs) / len(pairs)


def test_a_text_is_cut_into_words_once_however_many_phrases_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = list[str]()

    def cut(text: str) -> list[str]:
        texts.append(text)
        return folded_words(text)

    monkeypatch.setattr(shards_ranking, "folded_words", cut)
    with FileArchive(tmp_path) as files:
        _fill(files, [prepared_mail(number, "invoice lunch meeting budget kestrel") for number in range(3)])
        with files.search() as search:
            assert len(search.search("invoice OR lunch OR meeting OR budget OR kestrel", sort="rank").hits) == 3
    assert len(texts) == 3
