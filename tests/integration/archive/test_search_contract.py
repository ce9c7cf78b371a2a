"""What a search must do in any archive, whatever it is built on: pages, ranks, labels, threads, any words at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.preparing import PreparedMail, prepare
from postroom.archive.search import Search, SearchPage
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.mail.query import QueryError
from tests.support.archives import ACCOUNT, FIRST_DAY, OTHER, prepared_mail
from tests.support.mail import letter
from tests.support.naive_search import NOISE

pytestmark = pytest.mark.req("SY-15", "SY-18")


@pytest.fixture
def search(archive_place: ArchiveBackend) -> Iterator[Search]:
    with archive_place.search(ManualClock(FIRST_DAY + timedelta(days=10))) as opened:
        yield opened


def put(place: ArchiveBackend, mails: Sequence[PreparedMail], account: str = ACCOUNT) -> None:
    with place.writer("a test") as archive:
        archive.submit(account, mails).result()


def subjects(page: SearchPage) -> list[str]:
    return [hit.message.subject for hit in page.hits]


def test_an_archive_that_does_not_exist_yet_has_nothing_in_it(search: Search) -> None:
    assert search.search("anything") == SearchPage((), None)
    assert search.count("anything").messages == 0
    assert search.accounts() == []


def test_accounts_are_searched_together_or_apart(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(1), prepared_mail(3)])
    put(archive_place, [prepared_mail(2), prepared_mail(4)], account=OTHER)
    assert search.accounts() == [ACCOUNT, OTHER]
    assert subjects(search.search("")) == ["Letter 4", "Letter 3", "Letter 2", "Letter 1"]
    assert subjects(search.search("", accounts=[OTHER])) == ["Letter 4", "Letter 2"]
    assert subjects(search.search("", accounts=["nobody@example.com"])) == []


def test_ages_count_back_from_the_clock(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(number) for number in range(10)])
    assert subjects(search.search("newer_than:2d")) == ["Letter 9", "Letter 8"]


def test_a_year_alone_begins_at_its_first_day(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(number) for number in (0, 400)])  # over two years
    year = (FIRST_DAY + timedelta(days=400)).year
    assert subjects(search.search(f"before:{year}")) == ["Letter 0"]
    assert subjects(search.search(f"after:{year}")) == ["Letter 400"]
    assert subjects(search.search("after:1950 before:9999")) == ["Letter 400", "Letter 0"]
    assert subjects(search.search("before:1950")) == []


def test_pages_go_on_where_they_ended_although_mail_comes_in_between(
    archive_place: ArchiveBackend, search: Search
) -> None:
    put(archive_place, [prepared_mail(number) for number in range(6)])
    first = search.search("", limit=3)
    put(archive_place, [prepared_mail(7), prepared_mail(8)])
    second = search.search("", limit=3, after=first.next)
    assert subjects(first) + subjects(second) == [f"Letter {number}" for number in (5, 4, 3, 2, 1, 0)]
    assert second.next is None


@pytest.mark.req("UX-1")
def test_pages_lead_back_the_way_they_came(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(number) for number in range(0, 700, 100)])  # over two years
    put(archive_place, [prepared_mail(number) for number in range(0, 700, 100)], account=OTHER)
    pages: list[SearchPage] = []
    after = None
    while after is not None or not pages:
        pages.append(search.search("letter", limit=4, after=after))
        after = pages[-1].next
    assert len(pages) == 4
    assert pages[0].previous is None
    for page, later in pairwise(pages):
        back = search.search("letter", limit=4, before=later.previous)
        assert (back.hits, back.next) == (page.hits, page.next)
    assert search.search("letter", limit=4, before=pages[1].previous).previous is None
    everything = [hit.message for page in pages for hit in page.hits]
    for newer, message, older in zip(everything, everything[1:], everything[2:], strict=False):
        assert search.around("letter", message) == (newer, older)
    assert search.around("letter", everything[0])[0] is None
    assert search.around("letter", everything[-1])[1] is None


@pytest.mark.req("UX-1")
def test_the_beginning_of_a_word_finds_it_and_is_marked(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(1, "The Invoices of May."), prepared_mail(2, "Say in voice."), prepared_mail(3)])
    page = search.search("invoi*")
    assert subjects(page) == ["Letter 1"]
    assert [page.hits[0].snippet.text[start:end] for start, end in page.hits[0].snippet.marks] == ["Invoices"]
    assert subjects(search.search('"the invo*"')) == ["Letter 1"]
    assert subjects(search.search("subject:lett* -invoi*")) == ["Letter 3", "Letter 2"]
    assert subjects(search.search("s*")) == []  # one letter is a word


@pytest.mark.req("UX-1")
def test_me_is_the_owner_of_the_mailbox(archive_place: ArchiveBackend, search: Search) -> None:
    sent = letter("Sent", sender=f"Me <{ACCOUNT}>", to="ann@friends.example")
    got = letter("Got", sender="Ann <ann@friends.example>", to=ACCOUNT)
    raws = {"00000000000000aa": sent, "00000000000000bb": got}
    mails = [prepare(IncomingMail(raw, Provenance.API, key, None, frozenset())) for key, raw in raws.items()]
    put(archive_place, mails)
    put(archive_place, [prepared_mail(1)], account=OTHER)
    assert subjects(search.search("from:me")) == subjects(search.search("from:Me", accounts=[ACCOUNT])) == ["Sent"]
    assert subjects(search.search("to:me -from:me", accounts=[ACCOUNT])) == ["Got"]
    assert subjects(search.search("from:me", accounts=[OTHER])) == []


def test_the_owner_s_labels_are_known(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(1, "Hello.", "INBOX", "work", "UNREAD")])
    put(archive_place, [prepared_mail(2, "Hello.", "Bills", "work")], account=OTHER)
    assert search.labels() == ["Bills", "work"]
    assert search.labels([ACCOUNT]) == ["work"]


def test_ranked_pages_follow_each_other(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(number, "lunch " * number) for number in range(1, 8)])
    first = search.search("lunch", sort="rank", limit=4)
    second = search.search("lunch", sort="rank", limit=4, after=first.next)
    assert subjects(first)[0] == "Letter 7"
    assert len({*subjects(first), *subjects(second)}) == 7
    assert second.next is None


@pytest.mark.parametrize("sort", ["date", "rank"])
@pytest.mark.parametrize("token", ["x", "é", "WyJkYXRlIl0", "WyJkYXRlIiwiYS8yMDI0LmRiIiwtMV0", "W10", "bnVsbA"])
def test_a_token_that_no_page_gave_is_refused(search: Search, token: str, sort: str) -> None:
    with pytest.raises(BadInput, match="after"):
        search.search("", sort=sort, after=token)


def test_a_token_of_the_other_order_is_refused(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(1, "lunch"), prepared_mail(2, "lunch")])
    by_date = search.search("lunch", limit=1).next
    with pytest.raises(BadInput, match="after"):
        search.search("lunch", limit=1, sort="rank", after=by_date)


@pytest.mark.parametrize(("limit", "sort"), [(0, "date"), (501, "date"), (-1, "rank"), (5, "size")])
def test_impossible_wishes_are_refused(search: Search, limit: int, sort: str) -> None:
    with pytest.raises(BadInput):
        search.search("", limit=limit, sort=sort)


def test_counting_stops_at_its_limit(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(number, "lunch") for number in range(10)])
    assert search.count("lunch").messages == 10
    assert (search.count("lunch", limit=10).messages, search.count("lunch", limit=10).is_exact) == (10, True)
    assert (search.count("lunch", limit=4).messages, search.count("lunch", limit=4).is_exact) == (4, False)


def test_spam_and_trash_are_found_only_when_asked_for(archive_place: ArchiveBackend, search: Search) -> None:
    put(
        archive_place,
        [
            prepared_mail(1, "lunch", "INBOX"),
            prepared_mail(2, "lunch", "SPAM"),
            prepared_mail(3, "lunch", "TRASH", "work"),
        ],
    )
    assert subjects(search.search("lunch")) == ["Letter 1"]
    assert subjects(search.search("label:work")) == []
    assert subjects(search.search("lunch in:spam")) == ["Letter 2"]
    assert subjects(search.search("lunch in:trash")) == ["Letter 3"]
    assert subjects(search.search("lunch label:spam")) == ["Letter 2"]
    assert subjects(search.search("lunch in:anywhere")) == ["Letter 3", "Letter 2", "Letter 1"]


def test_labels_are_found_however_they_are_written(archive_place: ArchiveBackend, search: Search) -> None:
    put(
        archive_place,
        [
            prepared_mail(1, "", "Kunden/Süd", "Category Updates", "Unread"),
            prepared_mail(2, "", "CATEGORY_UPDATES", "UNREAD"),
        ],
    )
    assert subjects(search.search("label:kunden-süd")) == ["Letter 1"]
    assert subjects(search.search('label:"KUNDEN/SÜD"')) == ["Letter 1"]
    assert subjects(search.search("category:updates is:unread")) == ["Letter 2", "Letter 1"]
    assert subjects(search.search("has:userlabels")) == ["Letter 1"]


def test_labels_made_while_the_search_is_open_are_found(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(1, "", "INBOX")])
    assert subjects(search.search("label:new")) == []
    put(archive_place, [prepared_mail(2, "", "new")])
    assert subjects(search.search("label:new")) == ["Letter 2"]


def test_a_snippet_shows_the_words_and_where_they_are(archive_place: ArchiveBackend, search: Search) -> None:
    padding = "Something else entirely. " * 60
    put(archive_place, [prepared_mail(1, f"{padding}\n\n The CAFÉ   opens\tfor lunch at noon. {padding}")])
    [hit] = search.search("lunch cafe").hits
    marked = [hit.snippet.text[start:end] for start, end in hit.snippet.marks]
    assert marked == ["CAFÉ", "lunch"]
    assert "The CAFÉ opens for lunch at noon." in hit.snippet.text
    assert len(hit.snippet.text) <= 240
    [plain] = search.search("subject:letter").hits
    assert plain.snippet.text.startswith("Something else entirely. Something")
    assert plain.snippet.marks == ()


def test_a_long_thread_is_read_from_its_end(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(number, thread="t1") for number in range(5)])
    newest = search.thread(ACCOUNT, "t1", newest=2).messages
    assert [message.subject for message in newest] == ["Letter 3", "Letter 4"]
    older = search.thread(ACCOUNT, "t1", newest=2, before=newest[0].row_id).messages
    assert [message.subject for message in older] == ["Letter 1", "Letter 2"]


def test_several_threads_are_read_at_once_newest_first(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(number, thread=f"t{number % 3}") for number in range(8)])
    found = search.threads(ACCOUNT, ["t0", "t2", "unknown"], newest=4).messages
    assert [message.subject for message in found] == ["Letter 6", "Letter 5", "Letter 3", "Letter 2"]
    assert search.threads(ACCOUNT, [], newest=4).messages == ()
    assert search.threads(OTHER, ["t0"], newest=4).messages == ()


def test_a_message_is_found_by_its_key_in_whichever_shard_of_its_account(
    archive_place: ArchiveBackend, search: Search
) -> None:
    put(archive_place, [prepared_mail(0), prepared_mail(5)])
    for number in (0, 5):
        found = search.message(ACCOUNT, f"{number:016x}")
        assert found is not None
        assert found.subject == f"Letter {number}"
    assert search.message(ACCOUNT, "unknown") is None
    assert search.message(OTHER, f"{0:016x}") is None


def test_many_threads_may_search_at_once(archive_place: ArchiveBackend, search: Search) -> None:
    put(archive_place, [prepared_mail(number, "lunch") for number in range(6)])
    answers: list[list[str]] = []

    def ask() -> None:
        for _ in range(10):
            answers.append(subjects(search.search("lunch OR is:unread", limit=5)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [["Letter 5", "Letter 4", "Letter 3", "Letter 2", "Letter 1"]] * 40


@settings(
    deadline=None, derandomize=True, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=NOISE)
def test_whatever_is_typed_is_answered_or_refused_as_a_query(
    archive_place: ArchiveBackend, search: Search, text: str
) -> None:
    if not search.accounts():
        put(archive_place, [prepared_mail(1, "lunch", "INBOX")])
    try:
        page = search.search(text)
    except QueryError:
        return
    assert page.problems == ()


@pytest.mark.parametrize(
    "words", ['" OR "', "NEAR(a b)", "lunch*", "^lunch", "body : lunch", "a'b", "lunch\0x", "\ud800", "%_", "'; DROP"]
)
def test_words_are_never_read_as_commands_to_the_database(
    archive_place: ArchiveBackend, search: Search, words: str
) -> None:
    put(archive_place, [prepared_mail(1, "lunch")])
    try:
        page = search.search(f"subject:x OR {words}")
    except QueryError:
        return
    assert page.problems == ()


@pytest.mark.parametrize(
    "query",
    [
        " OR ".join(f"w{number}" for number in range(2_000)),
        " ".join(f"w{number}" for number in range(2_000)),
        " ".join(f"-w{number}" for number in range(2_000)),
        " OR ".join(f"w{number} OR label:l{number % 3}" for number in range(900)),
        " ".join(f"w{number} OR label:l{number % 3}" for number in range(800)),
        " ".join(f"-label:l{number % 3}" for number in range(1_000)),
        "{" + " ".join(f"larger:{number}" for number in range(1_200)) + "}",
        " ".join(f"bcc:w{number}" for number in range(1_500)),
        "(a OR (label:l1 " * 19 + "b" + "))" * 19,
        "-(a (-label:l1 " * 10 + "b" + "))" * 10,
        "-(a label:l1 " * 20 + "b" + ")" * 20,
        "-(" * 20 + "a label:l1" + ")" * 20,
        "(a OR {label:l1 larger:2 (b -is:unread " * 13 + "b" + ")})" * 13,
    ],
    ids=lambda query: query[:20],
)
def test_the_longest_queries_are_answered(archive_place: ArchiveBackend, search: Search, query: str) -> None:
    put(archive_place, [prepared_mail(number, f"w{number}", f"l{number}") for number in range(4)])
    assert search.search(query).problems == ()
    assert search.search(query, sort="rank").problems == ()
    assert search.count(query).problems == ()
