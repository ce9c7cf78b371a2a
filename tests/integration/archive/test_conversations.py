"""Conversations across accounts and imports: the contract, run over every backend."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from postroom.archive.backend import ArchiveBackend, MailWriter
from postroom.archive.conversations import forest
from postroom.archive.indexing import index_conversations
from postroom.archive.messages import ArchivedMessage
from postroom.archive.shards.conversations import CONVERSATIONS_FILE, DamagedIndex
from postroom.archive.shards.file_archive import FileArchive
from tests.support.archives import generated_mail, place_at
from tests.support.conversations import HOME, OLD, PER_BATCH, WORK, mail
from tests.support.databases import BACKENDS

pytestmark = pytest.mark.req("FD-5")


@pytest.fixture
def archive(archive_place: ArchiveBackend) -> Iterator[MailWriter]:
    with archive_place.writer("a test") as opened:
        yield opened


def conversations(place: ArchiveBackend) -> set[frozenset[str]]:
    """Every conversation of at least two messages, as the set of the texts of its messages."""
    found: dict[str | None, set[str]] = {}
    with place.reader() as reader, place.search() as search:
        for message in reader.newest_first():
            [name] = search.conversation_names([message])
            found.setdefault(name, set()).add(text_of(place, message))
    assert None not in found
    return {frozenset(texts) for texts in found.values() if len(texts) > 1}


def text_of(place: ArchiveBackend, message: ArchivedMessage) -> str:
    with place.reader() as reader:
        return reader.body_of(message).strip().removeprefix("This is ").removesuffix(".")


def found(place: ArchiveBackend, query: str, accounts: Sequence[str] | None = None) -> set[str]:
    with place.search() as search:
        return {text_of(place, hit.message) for hit in search.search(query, limit=100, accounts=accounts).hits}


def test_a_conversation_reaches_over_accounts_and_imports(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    archive.store(HOME, [mail("first", thread="1a"), mail("second", after=["first"], day=1, thread="1a")])
    archive.store(WORK, [mail("third", after=["first", "second"], day=2, sender="bob@x.example", to="ann@x.example")])
    archive.store(
        OLD, [mail("fourth", answers="third", day=3, to="bob@x.example"), mail("other", day=4), mail("first")]
    )
    assert index_conversations(archive_place).added == 6
    assert conversations(archive_place) == {frozenset({"first", "second", "third", "fourth"})}
    with archive_place.search() as search:
        [hit] = search.search("rfc822msgid:third@x.example").hits
        whole = search.conversation(hit.message)
        assert [text_of(archive_place, each) for each in whole.messages] == ["first", "second", "third", "fourth"]
        assert whole.count == 4, "the copy of the first is not counted"
        people = {each.address: (each.wrote, each.received) for each in whole.people}
        assert people == {"ann@x.example": (3, 1), "bob@x.example": (1, 1), HOME: (0, 2)}
        assert whole.name is not None
        for name in (whole.name, hit.message.key, "<first@x.example>", "1a"):
            assert found(archive_place, f"thread:{name}") == {"first", "second", "third", "fourth"}, name
        assert [each.account for each in search.conversation(hit.message, newest=2).messages] == [WORK, OLD]
        bound = search.conversation(hit.message, accounts=[WORK])
        assert [each.account for each in bound.messages] == [WORK], "a mailbox alone shows nothing of the others"
        assert {each.address for each in bound.people} == {"ann@x.example", "bob@x.example"}
    assert found(archive_place, f"thread:{whole.name}", [WORK]) == {"third"}
    assert found(archive_place, "has:conversation") == {"first", "second", "third", "fourth"}
    assert found(archive_place, "-has:conversation") == {"other"}
    assert found(archive_place, f"thread:{whole.name} has:conversation after:2026/03/04") == {"third", "fourth"}
    assert found(archive_place, "thread:nothing-of-that-name") == set()


def test_copies_of_one_message_are_not_a_conversation(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    archive.store(HOME, [mail("letter", thread="1a")])
    archive.store(OLD, [mail("letter")])
    index_conversations(archive_place)
    assert found(archive_place, "has:conversation") == set()


def test_mail_that_is_not_indexed_yet_is_found_by_its_thread(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    archive.store(HOME, [mail("first", thread="1a"), mail("second", after=["first"], day=1, thread="1a")])
    assert found(archive_place, "thread:1a") == {"first", "second"}
    assert found(archive_place, "has:conversation") == set()
    with archive_place.search() as search:
        [hit] = search.search("rfc822msgid:second@x.example").hits
        assert search.conversation(hit.message).name is None
        assert len(search.conversation(hit.message).messages) == 2


def test_the_order_of_indexing_makes_no_difference(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    """Also with references that were cut, a message that is missing, and a nearer one that comes last."""
    letters = [
        mail("a"),
        mail("c", after=["a", "b"], day=2, sender="bob@x.example", to="ann@x.example"),
        mail("d", answers="c", day=3, to="bob@x.example"),
        mail("e", after=["a", "b", "c", "d"], day=4, sender="bob@x.example", to="ann@x.example"),
        mail("y", subject="Other"),
        mail("z", answers="y", day=1),
    ]
    accounts = [HOME, WORK, OLD]
    random = Random(7)
    for each in random.sample(range(len(letters)), len(letters)):
        archive.store(accounts[each % 3], [letters[each]])
        index_conversations(archive_place)
    assert conversations(archive_place) == {frozenset("acde"), frozenset("yz")}
    assert index_conversations(archive_place).added == 0, "nothing waits twice"


def test_a_message_never_makes_one_conversation_of_two(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    """A stranger names both, in one message or over several; an answer to him inherits what he named."""
    stranger, owner = "mallory@evil.example", HOME
    letters = [
        mail("a1"),
        mail("a2", answers="a1", day=1, sender=owner, to="ann@x.example"),
        mail("b1", sender="bob@x.example", subject="Salary"),
        mail("b2", answers="b1", day=1, sender=owner, to="bob@x.example"),
        mail("joins", after=["a2", "b2"], day=2, sender=stranger),
        mail("again", after=["b2", "joins", "a1"], day=3, sender=stranger),
        mail("answer", after=["a2", "b2", "again"], day=4, sender=owner, to=stranger),
    ]
    for each in reversed(letters):
        archive.store(HOME, [each])
        index_conversations(archive_place)
    together = conversations(archive_place)
    assert not any({"a1", "b1"} <= each for each in together)
    private = frozenset({"a1", "a2", "b1", "b2"})
    assert {each & private for each in together} == {frozenset({"a1", "a2"}), frozenset({"b1", "b2"})}


def test_whoever_takes_an_unused_message_id_takes_no_answers_with_him(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    archive.store(HOME, [mail("a"), mail("private", sender="bob@x.example", subject="Salary")])
    archive.store(HOME, [mail("c", after=["a", "missing"], day=2, sender=HOME, to="ann@x.example")])
    archive.store(HOME, [mail("d", answers="missing", day=2, sender=HOME, to="ann@x.example", subject="Cut")])
    index_conversations(archive_place)
    forged = mail("missing", answers="private", day=1, sender="mallory@evil.example")
    archive.store(HOME, [forged])
    index_conversations(archive_place)
    assert conversations(archive_place) == {frozenset({"a", "c"}), frozenset({"private", "missing"})}
    archive.store(OLD, [mail("missing", after=["a"], day=1.5)])
    index_conversations(archive_place)
    assert conversations(archive_place) == {frozenset({"a", "c", "d", "missing"}), frozenset({"private", "missing"})}


def test_a_message_id_that_is_used_again_takes_no_ones_place(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    original = mail("a", message_id="<same@x.example>")
    answer = mail("b", sender=HOME, to="ann@x.example", day=1, headers="In-Reply-To: <same@x.example>")
    others = [
        mail(f"spam{number}", message_id="<same@x.example>", sender="robot@y.example", day=number / 100)
        for number in range(1, 40)
    ]
    archive.store(HOME, [*others, answer, original])
    index_conversations(archive_place)
    assert conversations(archive_place) == {frozenset({"a", "b"})}


def test_a_hub_of_references_grows_to_a_limit(
    archive_place: ArchiveBackend, archive: MailWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One id that many refer to, and one message that refers to thousands."""
    limit = 40
    monkeypatch.setattr(forest, "MOST_IN_CONVERSATION", limit)
    many = [f"n{number}" for number in range(limit + 20)]
    archive.store(
        HOME, [mail("hub"), *(mail(name, answers="hub", day=1 + number / 5_000) for number, name in enumerate(many))]
    )
    archive.store(OLD, [mail("digest", after=[f"unknown{number}" for number in range(5_000)], day=5)])
    index_conversations(archive_place)
    with archive_place.search() as search:
        [hit] = search.search("rfc822msgid:hub@x.example").hits
        assert search.conversation(hit.message, newest=5).count == limit
        assert len(search.conversation(hit.message, newest=5).messages) == 5


def test_spam_and_refuted_mail_is_shown_and_leads_no_one(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    """It may join, but nothing hangs below it that has somewhere else to go."""
    refuted = "Authentication-Results: mx.example; dmarc=fail header.from=x.example"
    archive.store(HOME, [mail("a"), mail("b", subject="Salary")])
    archive.store(HOME, [mail("forged", answers="b", day=1, headers=refuted)])
    archive.store(HOME, [mail("answer", after=["a", "forged"], sender=HOME, to="ann@x.example", day=2)])
    index_conversations(archive_place)
    assert conversations(archive_place) == {frozenset({"a", "answer"}), frozenset({"b", "forged"})}


def test_an_answer_without_references_is_found_by_its_subject(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    letters = [
        mail("question", subject="Rehearsal on Friday"),
        mail("outlook", subject="AW: Rehearsal on Friday", sender=HOME, to="ann@x.example", day=1),
        mail("japanese", subject="返信: AW: Rehearsal on friday", day=2),
        mail("late", subject="Re: Rehearsal on Friday", sender=HOME, to="ann@x.example", day=60),
        mail("stranger", subject="Re: Rehearsal on Friday", sender="mallory@evil.example", day=1),
        mail("new", subject="Rehearsal on Friday", day=3),
        mail("forward", subject="Fwd: Rehearsal on Friday", sender=HOME, to="ann@x.example", day=3),
    ]
    for number, each in enumerate(reversed(letters)):
        archive.store([HOME, OLD][number % 2], [each])
        index_conversations(archive_place)
    assert conversations(archive_place) == {frozenset({"question", "outlook", "japanese"})}


def test_mail_that_gmail_joined_stays_joined(archive_place: ArchiveBackend, archive: MailWriter) -> None:
    archive.store(HOME, [mail("later", subject="Re: x", day=2, thread="1a"), mail("latest", day=3, thread="1a")])
    index_conversations(archive_place)
    archive.store(HOME, [mail("earlier", day=1, thread="1a")])
    archive.store(OLD, [mail("answer", answers="latest", day=4)])
    index_conversations(archive_place)
    assert conversations(archive_place) == {frozenset({"earlier", "later", "latest", "answer"})}


def test_an_import_that_turns_out_to_be_of_a_mailbox_joins_its_thread(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    archive.store(HOME, [mail("old")])
    archive.store(HOME, [mail("beside", subject="Something else", day=1, thread="1a")])
    index_conversations(archive_place)
    assert conversations(archive_place) == set()
    archive.store(HOME, [mail("old", thread="1a")])
    assert index_conversations(archive_place).added == 1
    assert conversations(archive_place) == {frozenset({"old", "beside"})}


def test_a_generated_mailbox_has_the_conversations_that_gmail_made(
    archive_place: ArchiveBackend, archive: MailWriter
) -> None:
    mails = generated_mail(150)
    archive.store(HOME, mails)
    done = 0

    def more(added: int) -> None:
        nonlocal done
        done += added

    first = index_conversations(archive_place, more, lambda: done >= 100, messages=50)
    assert not first.is_done
    assert index_conversations(archive_place, more).is_done
    assert done == 150
    threads: dict[str, set[str]] = {}
    for each in mails:
        threads.setdefault(each.thread_id or "", set()).add(each.gmail_id or "")
    with archive_place.reader() as reader, archive_place.search() as search, archive_place.conversations() as index:
        by_name: dict[str | None, set[str]] = {}
        messages = list(reader.newest_first())
        for message, name in zip(messages, search.conversation_names(messages), strict=True):
            by_name.setdefault(name, set()).add(message.key)
        assert sorted(map(sorted, by_name.values())) == sorted(map(sorted, threads.values()))
        assert index.counts().messages == 150
        assert index.counts().conversations == sum(len(each) > 1 for each in threads.values())


def test_a_damaged_or_missing_index_is_made_anew(tmp_path: Path) -> None:
    place = FileArchive(tmp_path)
    with place.writer("a test") as archive:
        archive.store(HOME, [mail("first"), mail("second", answers="first", day=1)])
    index_conversations(place)
    whole = conversations(place)
    file = place.root / CONVERSATIONS_FILE
    for damage in (Path.unlink, _overwrite, _of_other_version):
        damage(file)
        for leftover in ("-wal", "-shm"):
            file.with_name(f"{file.name}{leftover}").unlink(missing_ok=True)
        assert found(place, "has:conversation") == set(), "a search goes on without it"
        index_conversations(place)
        assert conversations(place) == whole


def test_an_open_search_uses_the_index_that_is_there_now(tmp_path: Path) -> None:
    place = FileArchive(tmp_path)
    with place.writer("a test") as archive:
        archive.store(HOME, [mail("first"), mail("second", answers="first", day=1)])
    file = place.root / CONVERSATIONS_FILE
    with place.search() as search:
        assert search.count("has:conversation").messages == 0
        for put_there in (None, b"no database" * 1_000, None):
            index_conversations(place)
            assert search.count("has:conversation").messages == 2
            file.unlink()
            if put_there is not None:
                file.write_bytes(put_there)
            for leftover in ("-wal", "-shm"):
                file.with_name(f"{file.name}{leftover}").unlink(missing_ok=True)
            assert search.count("has:conversation").messages == 0
            assert search.count("this").messages == 2


def test_damage_within_the_index_stops_no_page_and_is_repaired(tmp_path: Path) -> None:
    place = FileArchive(tmp_path)
    with place.writer("a test") as archive:
        archive.store(HOME, [mail(f"m{number}", answers=f"m{number - 1}", day=number) for number in range(1, 60)])
    index_conversations(place)
    whole = conversations(place)
    file = place.root / CONVERSATIONS_FILE
    with file.open("r+b") as opened:
        opened.seek(4_096)  # the first page, with the names of the tables, stays
        opened.write(b"\xff" * (file.stat().st_size - 4_096))
    with place.reader() as reader, place.search() as search:
        messages = list(reader.newest_first())
        assert search.conversation_names(messages) == [None] * 59
        assert search.conversation(messages[0]).name is None
        assert len(search.search("this").hits) > 0
    with place.writer("a test") as archive:
        archive.store(HOME, [mail("m60", answers="m59", day=60)])
    with pytest.raises(DamagedIndex):
        index_conversations(place)
    index_conversations(place)
    assert conversations(place) == {frozenset({*next(iter(whole)), "m60"})}


def _overwrite(file: Path) -> None:
    file.write_bytes(b"no database" * 1_000)


def _of_other_version(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.fixture(params=BACKENDS)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty archive, as another process opens it: a folder, or a database's address."""
    if request.param == "files":
        return str(tmp_path / "archive")
    url: str = request.getfixturevalue("postgres_factory").empty_url()
    return url


@pytest.mark.timeout(240)
def test_killed_while_indexing_the_next_run_goes_on(where: str) -> None:
    letters = [mail(f"m{number}", day=number / 10) for number in range(30)]
    answers = [mail(f"a{number}", answers=f"m{number}", day=10 + number / 10) for number in range(30)]
    with place_at(where) as place:
        with place.writer("a test") as archive:
            archive.store(HOME, letters)
            archive.store(OLD, answers)
        reported = sum(_index_and_kill(where, after) for after in (1, 3))
        with place.conversations() as index:
            before = index.counts().messages
        assert 4 * PER_BATCH == reported <= before < 60, "what was reported is recorded"
        assert index_conversations(place).added == 60 - before
        assert conversations(place) == {frozenset({f"m{number}", f"a{number}"}) for number in range(30)}
        assert index_conversations(place).added == 0
        assert place.verify().findings == []


def _index_and_kill(where: str, after: int) -> int:
    """Kill the program after so many batches; returns how many messages it has reported."""
    command = [sys.executable, "-m", "tests.support.conversations", where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        lines = iter(program.stdout.readline, "")
        assert next(lines).strip() == "ready"
        reported = sum(int(next(lines).split()[1]) for _ in range(after))
        program.kill()
    return reported
