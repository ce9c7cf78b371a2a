"""A search that finds little suggests a word that the archive has, in any archive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroom.archive.backend import ArchiveBackend
from postroom.archive.search import Search
from tests.support.archives import ACCOUNT, OTHER, prepared_mail

pytestmark = pytest.mark.req("FD-6")


@pytest.fixture
def search(archive_place: ArchiveBackend) -> Iterator[Search]:
    usual = [prepared_mail(number, "The invoice for Übersetzung and Привет of the committee.") for number in range(12)]
    with archive_place.writer("a test") as archive:
        archive.submit(ACCOUNT, [*usual, prepared_mail(50, "invoide"), prepared_mail(51, "lottery", "SPAM")]).result()
        archive.submit(OTHER, [prepared_mail(60, "A zeppelin.")]).result()
    with archive_place.search() as opened:
        yield opened


def suggestion(search: Search, query: str, accounts: list[str] | None = None) -> str | None:
    return search.suggestion(query, search.count(query, accounts=accounts).messages, accounts=accounts, patience_s=30)


def test_the_nearest_word_that_is_there_is_suggested(search: Search) -> None:
    asked = ["invoise", "Invioce", "from:xy OR invoise", '"the invoise"', "comittee", "commitee", "commite"]
    wanted = ["invoice", "invoice", "from:xy OR invoice", '"the invoice"', "committee", "committee", "committee"]
    assert [suggestion(search, query) for query in asked] == wanted
    assert suggestion(search, "ubersetung") == "ubersetzung"
    assert suggestion(search, "превет") == "привет"
    assert suggestion(search, "invoide") == "invoice", "one message has it, many have the other"
    assert suggestion(search, "after:2024/01/01 invoise -lunch") == "after:2024/01/01 invoice -lunch"


def test_nothing_is_suggested_without_reason(search: Search) -> None:
    for query in (
        "invoice",
        "invoice zebra",
        '"invoice the"',
        "inv",
        "invoise*",
        "-invoise",
        "北京",
        "label:invoise",
        "",
    ):
        assert suggestion(search, query) is None, query


def test_words_of_spam_and_of_other_mailboxes_are_not_suggested(search: Search) -> None:
    assert suggestion(search, "lotery") is None
    assert suggestion(search, "in:spam lotery") == "in:spam lottery"
    assert suggestion(search, "zepelin") == "zeppelin"
    assert suggestion(search, "zepelin", [ACCOUNT]) is None


def test_looking_for_a_suggestion_is_given_up_when_time_is_over(search: Search) -> None:
    assert search.suggestion("invoise", 0, patience_s=-1.0) is None
    assert search.suggestion("invoise", 3) is None, "enough was found"
