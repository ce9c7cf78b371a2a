"""Similar mail and ranking by words and meaning, in files and in PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.archive.backend import ArchiveBackend
from postroom.archive.meaning.vectors import VectorState, make_vectors, vector_state
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.search import Search, SearchPage, Sort
from postroom.archive.shards.file_archive import FileArchive
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.extras import _BRINGS, Extra
from tests.support.archives import ACCOUNT, FIRST_DAY, OTHER, prepared_mail
from tests.support.mail import letter

pytestmark = pytest.mark.req("FD-3")

LETTERS = (
    ("Appointment", "The dentist will look at your tooth on Monday.", "INBOX"),
    ("Filling", "My tooth hurt, so a dentist looked at it yesterday.", "INBOX"),
    ("Cheap crowns", "Dentists hate this: new teeth, tooth by tooth.", "SPAM"),
    ("Invoice 17", "Please pay the amount due within thirty days.", "INBOX"),
    ("Sunday", "Our football team won the match by three goals.", "INBOX"),
)


def mail(number: int, subject: str, body: str, label: str, sender: str = "Ann <ann@friends.example>") -> IncomingMail:
    raw = letter(subject, f"{body}\n", sender=sender, headers={"Message-ID": f"<{number}@meaning.example>"})
    received = FIRST_DAY + timedelta(days=number)
    return IncomingMail(raw, Provenance.API, f"{number:016x}", f"t{number:x}", frozenset({label}), received)


def key(number: int) -> str:
    return f"{number:016x}"


@pytest.fixture
def place(archive_place: ArchiveBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchiveBackend:
    if archive_place.vectors is None:
        monkeypatch.setattr(archive_place, "_vectors", tmp_path / "vectors")
    with archive_place.writer("a test") as archive:
        archive.store(ACCOUNT, [mail(number, *each) for number, each in enumerate(LETTERS)])
        archive.store(OTHER, [mail(9, "Toothache", "Which dentist do you go to?", "INBOX", "Bob <bob@x.example>")])
    for account in (ACCOUNT, OTHER):
        make(archive_place, account)
    return archive_place


@pytest.fixture
def search(place: ArchiveBackend) -> Iterator[Search]:
    with place.search() as opened:
        yield opened


def make(place: ArchiveBackend, account: str = ACCOUNT) -> int:
    assert place.vectors is not None
    with place.reader() as reader:
        return make_vectors(reader, place.vectors, account)


def subjects(page: SearchPage) -> list[str]:
    return [hit.message.subject for hit in page.hits]


def test_similar_mail_comes_nearest_first_without_spam_and_without_itself(search: Search) -> None:
    found = search.search(f"similar:{key(0)}", accounts=[ACCOUNT])
    assert subjects(found)[0] == "Filling"
    assert sorted(subjects(found)) == ["Filling", "Invoice 17", "Sunday"]
    assert subjects(search.search(f"similar:{key(0)} in:spam")) == ["Cheap crowns"]
    assert subjects(search.search(f"similar:{key(0)} from:bob")) == ["Toothache"]
    assert subjects(search.search(f"similar:{key(0)} football")) == ["Sunday"]
    assert search.count(f"similar:{key(0)}", accounts=[ACCOUNT]).messages == 3


def test_a_search_that_keeps_to_a_mailbox_finds_nothing_of_another(search: Search) -> None:
    assert "Toothache" in subjects(search.search(f"similar:{key(0)}"))
    assert "Toothache" not in subjects(search.search("dentist", accounts=[ACCOUNT], sort=Sort.BEST))
    with pytest.raises(NotFound, match=f"no message {key(9)}"):
        search.search(f"similar:{key(9)}", accounts=[ACCOUNT])


def test_best_finds_what_has_none_of_the_words_and_pages_go_on(search: Search) -> None:
    assert subjects(search.search("soccer", sort=Sort.RANK)) == []
    assert subjects(search.search("soccer tournament", sort=Sort.BEST, accounts=[ACCOUNT]))[0] == "Sunday"
    whole = subjects(search.search("when must I pay the bill?", sort=Sort.BEST, accounts=[ACCOUNT]))
    assert whole[0] == "Invoice 17"
    first = search.search("when must I pay the bill?", sort=Sort.BEST, accounts=[ACCOUNT], limit=3)
    second = search.search("when must I pay the bill?", sort=Sort.BEST, accounts=[ACCOUNT], limit=3, after=first.next)
    assert subjects(first) + subjects(second) == whole
    assert "Cheap crowns" not in whole


def test_related_mail_is_of_other_conversations_and_much_alike(search: Search) -> None:
    message = search.message(ACCOUNT, key(0))
    assert message is not None
    assert [hit.message.subject for hit in search.related(message, 5)] == ["Filling"]


def test_a_message_without_a_vector_says_who_makes_it(place: ArchiveBackend, search: Search) -> None:
    with place.writer("a test") as archive:
        archive.store(ACCOUNT, [mail(7, "New", "Just came in.", "INBOX")])
    with pytest.raises(BadInput, match="not worked out yet"):
        search.search(f"similar:{key(7)}")
    message = search.message(ACCOUNT, key(7))
    assert message is not None
    assert search.related(message, 5) == ()
    assert make(place) == 1
    assert search.search(f"similar:{key(7)}").hits


@pytest.mark.req("HW-7")
def test_without_the_extra_it_is_refused_with_the_command_and_nothing_is_related(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = search.message(ACCOUNT, key(0))
    assert message is not None
    for module in _BRINGS[Extra.MEANING]:
        monkeypatch.setitem(sys.modules, module, None)
    command = r"needs the meaning extra: pip install 'postroom\[meaning\]'"
    with pytest.raises(BadInput, match=f"similar: {command}"):
        search.search(f"similar:{key(0)}")
    with pytest.raises(BadInput, match=f"best {command}"):
        search.search("tooth", sort=Sort.BEST)
    assert search.related(message, 5) == ()
    assert "Appointment" in subjects(search.search("tooth", sort=Sort.RANK))


KILLED = """
import os, signal, sys
from pathlib import Path
from postroom.archive.meaning.vectors import make_vectors
from postroom.archive.shards.file_archive import FileArchive
place = FileArchive(Path(sys.argv[1]))
with place.reader() as reader:
    make_vectors(reader, place.root, sys.argv[2], show=lambda made: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_kill_loses_nothing_and_the_newest_were_first(tmp_path: Path) -> None:
    place = FileArchive(tmp_path)
    with place.writer("a test") as archive:
        archive.submit(ACCOUNT, [prepared_mail(number) for number in range(500)]).result()
    command = [sys.executable, "-c", KILLED, str(tmp_path), ACCOUNT]
    for made in (200, 400):
        done = subprocess.run(command, check=False)
        assert done.returncode == -signal.SIGKILL
        with place.reader() as reader:
            assert vector_state(reader, tmp_path, ACCOUNT) == VectorState(500, made)
    with place.search() as search:
        assert search.search(f"similar:{key(499)}", limit=1).hits
        with pytest.raises(BadInput, match="not worked out yet"):
            search.search(f"similar:{key(0)}")
    assert make(place) == 100
    assert make(place) == 0
    with place.reader() as reader:
        assert vector_state(reader, tmp_path, ACCOUNT).waiting == 0
