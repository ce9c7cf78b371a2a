"""Newest first without a sort: the promise that keeps a first page quick in an archive of any size."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from postroom.archive.folding import LabelIndex, fold, without_spam_and_trash
from postroom.archive.messages import ShardName
from postroom.archive.shards import reader
from postroom.archive.shards.search_reader import SearchReader
from postroom.archive.shards.searching import search_shards
from postroom.archive.shards.selecting import SizeIndex, selects
from postroom.archive.shards.shard_file import open_for_reading
from postroom.mail.query import parse
from postroom.sim.gmail.generated import GeneratedMailbox
from tests.support.archives import ACCOUNT, fill_shards, from_source

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    fill_shards(root, from_source(GeneratedMailbox(400, seed=2, email=ACCOUNT), range(320, 400)))
    return root


def plans(root: Path, query: str, *, rare: bool, short: bool = True) -> list[str]:
    """How the database would find the first page of a query: `rare` are all labels, `short` all indexes by size."""
    reader = SearchReader(root, ShardName(ACCOUNT, 2026))
    try:
        labels = LabelIndex(reader.query("SELECT label, name FROM labels"), lambda label: rare)
        node = fold(without_spam_and_trash(parse(query, 20_000 * DAY_MS, strict=True)), labels)
        sizes = [SizeIndex(name, least, short) for least, name in reader.size_indexes()]
        statements = [select.newest(below=1 << 60) for select in selects(node, labels, sizes)]
        explained = [reader.query(f"EXPLAIN QUERY PLAN {one.sql}", (*one.values, 21)) for one in statements]
        return [step for steps in explained for *_, step in steps]
    finally:
        reader.close()


@pytest.mark.req("SY-15")
@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize(
    "query",
    [
        "",
        "invoice",
        "invoice lunch -friday",
        '"thank you for" from:ann',
        "invoice OR subject:lunch",
        "-invoice",
        "in:inbox",
        "in:inbox invoice",
        "in:inbox -invoice is:unread",
        "invoice OR in:inbox OR has:attachment",
        "invoice has:attachment larger:2K",
        "has:attachment after:2020/01/01 before:2030/01/01",
        "(invoice OR in:inbox) -(lunch in:sent)",
        "in:anywhere invoice before:2030/01/01",
        "larger:1M",
        "larger:1M invoice -lunch",
        "larger:1M -invoice",
        "larger:1M in:inbox has:attachment",
        "larger:1M in:inbox has:attachment invoice -lunch",
        "-invoice -in:sent",
        "-rfc822msgid:a@b",
        "smaller:1K -has:attachment",
    ],
)
def test_the_newest_are_found_without_a_sort(root: Path, query: str, rare: bool) -> None:
    steps = plans(root, query, rare=rare)
    assert steps
    assert not [step for step in steps if "TEMP B-TREE" in step]


@pytest.mark.parametrize("query", ["", "-invoice", "smaller:1K", "smaller:1K invoice", "in:inbox -has:attachment"])
def test_sizes_and_attachments_are_asked_of_a_short_index(root: Path, query: str) -> None:
    assert any("COVERING INDEX messages_facts" in step for step in plans(root, query, rare=False))


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("larger:10K invoice", "messages_10k"),
        ("larger:60K", "messages_10k"),
        ("larger:64K invoice", "messages_large"),
        ("in:inbox larger:1023K -invoice", "messages_large"),
        ("larger:1M smaller:2M", "messages_1m"),
        ("larger:10K larger:20M invoice", "messages_1m"),
    ],
)
def test_large_messages_are_found_by_the_shortest_index_that_has_them(root: Path, query: str, index: str) -> None:
    steps = plans(root, query, rare=False)
    assert [step for step in steps if f"driver USING COVERING INDEX {index}" in step]


def test_text_drives_where_many_messages_are_as_large(root: Path) -> None:
    steps = plans(root, "larger:10K invoice", rare=False, short=False)
    assert not [step for step in steps if "messages_10k" in step]
    assert any("COVERING INDEX messages_10k" in step for step in plans(root, "larger:10K", rare=False, short=False))


def test_a_message_id_is_found_by_its_index(root: Path) -> None:
    assert any("messages_message_id" in step for step in plans(root, "rfc822msgid:a@b invoice", rare=False))


@pytest.mark.parametrize("query", ["in:inbox invoice", "larger:1M invoice -lunch", "in:inbox larger:64K invoice"])
def test_spam_and_trash_are_looked_up_only_of_what_the_index_leaves(root: Path, query: str) -> None:
    steps = plans(root, query, rare=True)
    looked_up = [number for number, step in enumerate(steps) if "CORRELATED" in step]
    assert "MERGE (INTERSECT)" in steps
    assert looked_up
    assert min(looked_up) > steps.index("SCAN driver")


@pytest.mark.parametrize(("query", "most"), [("in:inbox", 3), ("example", 4)])
def test_a_page_takes_few_statements_a_shard(
    root: Path, query: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Has it changed; the newest; those messages; and the texts of attachments, where words are not in a body."""
    statements: list[str] = []

    def traced(path: Path) -> sqlite3.Connection:
        connection = open_for_reading(path)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(reader, "open_for_reading", traced)
    with search_shards(root) as search:
        search.search(query, limit=5)
        statements.clear()
        page = search.search(query, limit=5)
    assert {hit.message.shard for hit in page.hits} == {f"{ACCOUNT}/2026.db"}
    assert not all(hit.snippet.marks for hit in page.hits)
    assert len([one for one in statements if not one.startswith("--")]) == most  # others are the index's own
