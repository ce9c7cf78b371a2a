"""`postroom search` as a person meets it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from postroom.app import App
from postroom.app.owner_tools.search_tools import SavedSearch, save_search
from postroom.archive.messages import IncomingMail, Provenance, ShardName, path_of
from postroom.archive.preparing import PreparedMail, prepare
from postroom.audit import Actor
from postroom.cli.main import tree
from postroom.cli.session import me, with_app
from postroom.domain.errors import BadInput
from tests.support.archives import ACCOUNT, fill_shards
from tests.support.attachments import with_attachments
from tests.support.commands import in_this_process as postroom
from tests.support.mail import letter

pytestmark = pytest.mark.req("SY-15")


def mail(year: int, subject: str, body: str = "Let us meet for lunch.\n", *labels: str) -> PreparedMail:
    received = datetime(year, 5, 17, 9, 30, tzinfo=UTC)
    return prepare(
        IncomingMail(letter(subject, body), Provenance.API, f"{year:016x}", None, frozenset(labels), received)
    )


def printed(*arguments: str) -> str:
    """The same without a process of its own."""
    done = CliRunner().invoke(tree(), arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def archive(home: Path) -> Path:
    root = home / "archive"
    fill_shards(
        root, [mail(2024, "An old plan"), mail(2025, "A new \x1b[31mplan"), mail(2023, "Win!", "lunch\n", "SPAM")]
    )
    return root


def test_hits_are_shown_newest_first_and_nothing_in_them_commands_the_terminal(archive: Path) -> None:
    done = postroom("search", "lunch")
    assert done.code == 0, done.stderr
    first, snippet, second, _ = done.stdout.splitlines()
    assert first.startswith("2025-05-17 09:30  00000000000007e9  Ann <ann@friends.example>  A new ")
    assert "meet for lunch" in snippet
    assert "An old plan" in second
    assert "\x1b" not in done.stdout


@pytest.mark.req("UX-3")
@pytest.mark.usefixtures("archive")
def test_hits_have_the_time_that_the_message_has_when_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        found, shown = postroom("search", "lunch").stdout, postroom("show", "00000000000007e9").stdout
    time.tzset()
    assert found.startswith("2025-05-17 18:30  00000000000007e9")
    assert "2025-05-17 18:30:00" in shown


def test_programs_get_json_with_the_places_of_the_words(archive: Path) -> None:
    page = json.loads(printed("search", "lunch", "--limit", "1", "--json"))
    [hit] = page["hits"]
    [[start, end]] = hit["snippet"]["marks"]
    assert hit["snippet"]["text"][start:end] == "lunch"
    assert "An old plan" in printed("search", "lunch", "--after", page["next"])


def test_counts_accounts_and_queries_that_begin_with_a_minus(archive: Path) -> None:
    assert printed("search", "lunch", "--count") == "2\n"
    assert printed("search", "--count", "-new") == "1\n"
    assert printed("search", "lunch in:anywhere", "--count", "--account", ACCOUNT) == "3\n"
    assert json.loads(printed("search", "lunch", "--count", "--json"))["messages"] == 2
    with pytest.raises(BadInput, match=ACCOUNT):
        printed("search", "lunch", "--account", "nobody@example.com")
    with pytest.raises(BadInput, match="--sotr"):
        printed("search", "--sotr")


def test_a_mistake_is_pointed_at(archive: Path) -> None:
    done = postroom("search", "lunch form:alice")
    assert done.code == 2
    query, caret, message = done.stderr.splitlines()
    assert query.index("form:") == caret.index("^")
    assert "from:" in message


def test_nothing_found_and_nothing_there_are_told_apart(home: Path) -> None:
    assert "archive is empty" in printed("search", "lunch")
    fill_shards(home / "archive", [mail(2024, "A plan")])
    assert "No mail matches" in printed("search", "dinner")


def test_an_answer_with_a_gap_says_so(archive: Path) -> None:
    path_of(archive, ShardName(ACCOUNT, 2025)).write_bytes(b"not a shard" * 1_000)
    done = postroom("search", "lunch")
    assert done.code == 1
    assert "An old plan" in done.stdout
    assert f"not searched: {ACCOUNT}/2025.db" in done.stderr


@pytest.mark.req("UX-1", "FD-5")
def test_a_saved_search_is_run_by_its_name(archive: Path) -> None:
    async def save(app: App) -> None:
        search = SavedSearch("Lunch plans", "lunch subject:old", ACCOUNT, app.clock.now())
        await app.database.write(lambda tx: save_search(tx, search, Actor.of(me())))

    with_app(save)
    assert "An old plan" in printed("search", "--saved", "lunch  PLANS")
    unknown = postroom("search", "--saved", "dinner")
    assert unknown.code != 0
    assert "--saved: there is no saved search “dinner”; there are Lunch plans" in " ".join(unknown.stderr.split())
    assert "write a query, or `--saved NAME`" in postroom("search", "lunch", "--saved", "x").stderr
    assert "write a query, or `--saved NAME`" in postroom("search").stderr


@pytest.mark.req("FD-6")
def test_a_search_for_a_misspelled_word_says_what_may_be_meant(archive: Path) -> None:
    assert "Did you mean: lunch -old" in printed("search", "lunsh -old").splitlines()
    assert json.loads(printed("search", "lunsh", "--json"))["suggestion"] == "lunch"
    assert json.loads(printed("search", "lunch", "--json"))["suggestion"] is None
    assert "Did you mean" not in printed("search", "zebra")


def test_a_search_without_hits_says_that_attachments_wait_to_be_read(home: Path) -> None:
    fill_shards(home / "archive", [prepare(with_attachments(1, [("plan.txt", b"a pangolin")], "See the plan."))])
    assert "attachments have not been read yet" in printed("search", "pangolin")
    assert "attachments" not in printed("search", "plan")
