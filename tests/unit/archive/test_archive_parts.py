"""The archive's pure parts: row ids, packing, preparing, names, transactions."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.archive import messages as layout
from postroom.archive import snippets
from postroom.archive.messages import (
    IncomingMail,
    Provenance,
    ShardName,
    account_name,
    parse_filename,
    path_of,
    year_of,
)
from postroom.archive.preparing import LARGE_BYTES, PLAIN, UNDATED, Packed, cut, join, pack, prepare, unpack
from postroom.archive.shards.insertion import ShardInsertion
from postroom.archive.shards.ranking import word_counts
from postroom.archive.shards.shard_file import open_for_writing
from postroom.archive.shards.writer import MESSAGES_PER_COMMIT, portions
from postroom.archive.words.ranking import RankedPhrase, count_at
from postroom.archive.words.tokens import folded_text, folded_words, words_of
from postroom.domain.errors import BadInput, Fatal
from postroom.mail.parsing import parse_mail
from postroom.mail.query.nodes import Text, TextField
from postroom.mail.query.segmenting import for_index
from tests.support.archives import generated_mail, plain_letter

dates = st.integers(0, 253_402_300_799_000)


@given(dates, dates, st.integers(0, 60_000), st.integers(0, 60_000))
def test_row_ids_sort_as_the_dates_do_whatever_the_order_of_arrival(
    one: int, two: int, first_slot: int, second_slot: int
) -> None:
    ids = [
        layout.free_id(one, lambda first: first + first_slot),
        layout.free_id(two, lambda first: first + second_slot),
    ]
    assert one == two or (ids[0] < ids[1]) == (one < two)
    assert all(0 <= row_id < 1 << 63 for row_id in ids)


@pytest.mark.parametrize("date_ms", [0, 1_700_000_000_000, 1 << 60])
def test_a_full_millisecond_flows_over_into_the_next_again_and_again(date_ms: int) -> None:
    first = layout.first_id(date_ms)
    taken = {first: first + layout.SLOTS - 1, first + layout.SLOTS: first + layout.SLOTS + 5}
    assert layout.free_id(date_ms, taken.get) == first + layout.SLOTS + 6
    taken[first + layout.SLOTS] = first + 2 * layout.SLOTS - 1
    assert layout.free_id(date_ms, taken.get) == first + 2 * layout.SLOTS < 1 << 63


@given(st.integers(-(10**16), 10**20))
def test_absurd_dates_still_give_ids_that_a_database_can_hold(date_ms: int) -> None:
    assert 0 <= layout.first_id(date_ms) < 1 << 63


def test_a_row_id_tells_its_date() -> None:
    moment = datetime(2026, 11, 15, 8, 30, 0, 123_000, tzinfo=UTC)
    assert layout.date_of_id(layout.first_id(int(moment.timestamp() * 1_000)) + 77) == moment


@pytest.mark.req("SY-7")
@given(st.binary(max_size=5_000))
def test_packing_gives_the_same_bytes_back(data: bytes) -> None:
    assert unpack(pack(data)) == data


@pytest.mark.req("SY-7")
@settings(max_examples=30)
@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 3)), max_size=6), st.binary(max_size=300))
def test_cutting_and_joining_gives_the_same_bytes_back(pieces: list[tuple[bytes, int]], tail: bytes) -> None:
    """Large pieces repeat, touch each other, and stand at the start and the end."""
    large = [bytes([65 + number]) * LARGE_BYTES for number in range(4)]
    raw = b""
    places: list[tuple[int, int]] = []
    for before, number in pieces:
        places.append((len(raw) + len(before), len(raw) + len(before) + LARGE_BYTES))
        raw += before + large[number]
    raw += tail
    rest, cuts = cut(raw, places)
    assert join(rest, cuts) == raw
    assert len(rest) < LARGE_BYTES or not pieces


def test_what_cannot_be_unpacked_is_said_to_be_so() -> None:
    with pytest.raises(Fatal, match="cannot be unpacked"):
        unpack(Packed("zstd", b"no frame"))
    with pytest.raises(Fatal, match="does not know"):
        unpack(Packed("brotli", b""))
    assert unpack(Packed(PLAIN, b"as it is")) == b"as it is"


@pytest.mark.req("SY-7")
@given(st.binary(max_size=2_000))
def test_any_bytes_can_be_prepared_and_come_back(raw: bytes) -> None:
    prepared = prepare(IncomingMail(raw, Provenance.IMPORT))
    assert join(unpack(prepared.packed), prepared.cuts) == raw
    for text in (prepared.subject, prepared.sender, *prepared.texts):
        text.encode()
        assert "\0" not in text


def test_generated_mail_comes_back_with_its_large_attachments_cut_out() -> None:
    for mail in generated_mail(300):
        prepared = prepare(mail)
        assert join(unpack(prepared.packed), prepared.cuts) == mail.raw
        sizes = [len(attachment.encoded) for attachment in parse_mail(mail.raw).attachments]
        assert len(prepared.cuts) == sum(size >= LARGE_BYTES for size in sizes)


def test_mail_without_a_date_or_an_id_gets_stable_ones() -> None:
    raw = b"Subject: nothing else\r\n\r\nbody"
    first, second = (prepare(IncomingMail(raw, Provenance.IMPORT)) for _ in range(2))
    assert (first.key, first.message_id, first.thread_id) == (second.key, second.message_id, second.thread_id)
    assert first.message_id.startswith("sha256:")
    assert first.date == UNDATED


def test_a_reply_without_a_thread_id_joins_the_thread_of_what_it_answers() -> None:
    first = prepare(IncomingMail(plain_letter(message_id="<1@x>"), Provenance.IMPORT))
    reply = b"In-Reply-To: <1@x>\r\nReferences: <1@x>\r\n" + plain_letter(message_id="<2@x>")
    assert prepare(IncomingMail(reply, Provenance.IMPORT)).thread_id == first.thread_id


def test_transactions_hold_at_most_a_hundred_messages_or_sixteen_megabytes() -> None:
    small = prepare(IncomingMail(plain_letter(), Provenance.IMPORT))
    assert [len(portion) for portion in portions([small] * 250)] == [MESSAGES_PER_COMMIT] * 2 + [50]
    attachment = b"Content-Disposition: attachment; filename=x\r\nContent-Type: x/y\r\n\r\n" + bytes(6 << 20)
    large = prepare(IncomingMail(attachment, Provenance.IMPORT))
    assert [len(portion) for portion in portions([large] * 5)] == [2, 2, 1]
    assert portions([]) == []


@given(st.lists(st.sampled_from(["hello", "天气", "ﬁn", "straße", "ｶﾅ", "ภาษา", "é", "\ud800", "\0"]) | st.text()))
def test_the_index_gets_the_texts_with_the_words_of_languages_without_spaces_apart(words: list[str]) -> None:
    raw = f"Subject: {''.join(words)}\nTo: {' '.join(words)}\n\n{' '.join(words)}".encode("utf-8", "replace")
    prepared = prepare(IncomingMail(raw, Provenance.IMPORT))
    assert tuple(prepared.indexed or prepared.texts) == tuple(map(for_index, prepared.texts))


def test_an_import_puts_up_to_two_hundred_messages_or_sixteen_megabytes_into_a_transaction() -> None:
    small = prepare(IncomingMail(plain_letter(), Provenance.IMPORT))
    assert [len(portion) for portion in portions([small] * 450, bulk=True)] == [200, 200, 50]
    attachment = b"Content-Disposition: attachment; filename=x\r\nContent-Type: x/y\r\n\r\n" + bytes(6 << 20)
    large = prepare(IncomingMail(attachment, Provenance.IMPORT))
    assert [len(portion) for portion in portions([large] * 5, bulk=True)] == [2, 2, 1]


def test_shards_are_named_by_account_and_year(tmp_path: Path) -> None:
    name = ShardName("me@example.org", 2026, 2)
    assert path_of(tmp_path, name) == tmp_path / "me@example.org" / "2026-2.db"
    assert parse_filename("me@example.org", "2026-2.db") == name
    assert parse_filename("me@example.org", "2026.db-wal") is None
    assert [year_of(UNDATED - timedelta(days=1_000)), year_of(datetime(2026, 1, 1, tzinfo=UTC))] == [1970, 2026]


@given(st.text(min_size=1, max_size=40))
def test_an_account_never_names_a_folder_outside_the_archive(text: str) -> None:
    root = Path("/archive")
    try:
        account = account_name(f"{text}@example.org")
    except BadInput as refusal:
        account = ""
        assert refusal.field == "account"  # noqa: PT017 (both outcomes are fine)
    if account:
        path = path_of(root, ShardName(account, 2026))
        assert path.parent.parent == root
        assert ".." not in path.parts


_MAIL = st.builds(
    lambda number, body, gmail_id, second, labels: IncomingMail(
        b"From: a@example.org\nMessage-ID: <%d@example.org>\nSubject: s\n\n%d\n" % (number, body),
        Provenance.TAKEOUT,
        gmail_id=f"18{gmail_id:014}" if gmail_id else None,
        labels=frozenset(labels),
        received=datetime(1970, 1, 1, second=second, tzinfo=UTC),
    ),
    number=st.integers(0, 5),
    body=st.integers(0, 2),
    gmail_id=st.integers(0, 5),
    second=st.integers(0, 2),
    labels=st.sets(st.sampled_from(["INBOX", "Work"])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_MAIL, max_size=8), st.lists(_MAIL, max_size=12))
def test_what_is_stored_together_is_as_if_stored_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, before: list[IncomingMail], mails: list[IncomingMail]
) -> None:
    """Ids of one millisecond may be given in another order; everything else, and every outcome, is the same."""
    folder = tmp_path_factory.mktemp("shards")
    prepared = [prepare(mail) for mail in mails]
    contents = []
    for file in ("together.db", "alone.db"):
        shard = open_for_writing(folder / file, ShardName("a@example.org", 1970))
        insertion = ShardInsertion(shard, "s")
        for mail in before:
            insertion.put(prepare(mail))
        stored = insertion.put_all(prepared) if file == "together.db" else [insertion.put(mail) for mail in prepared]
        rows = shard.execute(
            "SELECT m.key, m.gmail_id, m.message_id, m.date_ms, m.sha256, m.provenance, r.codec, r.data, t.body, "
            "(SELECT group_concat(name) FROM (SELECT name FROM message_labels JOIN labels USING (label) "
            "WHERE id = m.id ORDER BY name)), "
            "(SELECT count(*) FROM recipients WHERE id = m.id) "
            "FROM messages m JOIN raw r USING (id) JOIN texts t USING (id) ORDER BY m.key"
        ).fetchall()
        found = shard.execute("SELECT count(*) FROM search WHERE search MATCH 's'").fetchone()[0]
        assert found == len(rows)
        contents.append((rows, [(one.key, one.sha256, one.outcome) for one in stored]))
        shard.close()
    assert contents[0] == contents[1]


@pytest.mark.parametrize("foreign", [60, 1_000])
def test_folding_gives_one_character_for_each_whether_few_or_most_are_foreign(foreign: int) -> None:
    everything = [chr(code) for code in range(0x110000)]
    for start in range(0, len(everything), foreign):
        some = "".join(everything[start : start + foreign])
        assert snippets._folded(some + "A" * 9 * foreign) == some.translate(snippets._FOLD) + "a" * 9 * foreign


@given(st.text("aAéßﬁ_-. İ日กé\u0301bÀ"), st.lists(st.sampled_from(["a", "ab", "a b", "fi", "b*", "a b*"]), min_size=1))
def test_words_are_looked_for_with_simpler_patterns_beside_scripts_that_need_no_spaces(
    text: str, queries: list[str]
) -> None:
    folded = snippets._folded(text)
    words = snippets._without_runs(folded)
    assert (words != folded) == ("日" in text or "ก" in text)
    assert len(words) == len(folded)
    for phrase in snippets._phrases([Text(TextField.ANY, query) for query in queries]):
        exact = re.compile(snippets._spelled(phrase.pieces, phrase.is_prefix, snippets._LETTER))
        usual = snippets._pattern(phrase)
        assert len(usual.pattern) < 100  # the class of all those scripts takes over a millisecond to compile
        found = [match.span() for match in usual.finditer(words)]
        assert found == [match.span() for match in exact.finditer(folded)]


@pytest.mark.parametrize("query", ["ann日", "日 ann", "日", "ann"])
def test_a_phrase_of_both_kinds_of_scripts_is_marked(query: str) -> None:
    [phrase] = snippets._phrases([Text(TextField.ANY, query)])
    shown = snippets.snippet("xann 日 ann日 Ann本", (phrase,))
    assert shown.marks
    assert {shown.text[start:end].lower().replace(" ", "") for start, end in shown.marks} == {query.replace(" ", "")}


def test_no_folded_text_has_the_letter_that_stands_for_scripts_without_spaces() -> None:
    assert snippets._STAND_IN not in {snippets._FOLD[code] for code in range(0x110000)}


def test_letters_beside_a_script_without_spaces_end_a_word() -> None:
    [phrase] = snippets._phrases([Text(TextField.ANY, "ann")])
    assert snippets.snippet("xann 日ann本", (phrase,)).marks == ((6, 9),)


@pytest.mark.parametrize("place", [0, 100, 3_400, 3_600, 3_990, 3_999, 4_001, 9_000])
@pytest.mark.parametrize("query", ["ete", "ete ist", "et*"])
def test_a_snippet_of_a_long_body_is_the_same_as_if_all_of_it_was_looked_at(
    place: int, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "é " * (place // 2) + "Été  ist étés Été\nist " + "é " * 5_000 + "été ist"
    phrases = snippets._phrases([Text(TextField.ANY, query)])
    short = snippets.snippet(body, phrases)
    monkeypatch.setattr(snippets, "_EARLY", len(body))
    assert short == snippets.snippet(body, phrases)
    assert short.marks


@given(
    words=st.lists(st.sampled_from(["ann", "Änn", "bob", "annbob", "sea"]), max_size=20),
    phrases=st.lists(st.sampled_from(["ann", "bob", "ann bob", "bob ann", "an*"]), min_size=1, max_size=4),
)
def test_a_snippet_marks_phrases_and_never_the_same_place_twice(words: list[str], phrases: list[str]) -> None:
    body = " ".join(words)
    shown = snippets.snippet(body, snippets._phrases([Text(TextField.ANY, each) for each in phrases]))
    matching = re.compile("|".join(rf"\b{each.replace('*', '[a-z]*')}\b" for each in phrases))
    marked = [snippets._folded(shown.text[start:end]) for start, end in shown.marks]
    assert all(matching.fullmatch(each) for each in marked)
    assert bool(marked) == bool(matching.search(snippets._folded(body)))
    assert all(before[1] <= after[0] for before, after in pairwise(shown.marks))


@given(st.text(" \t\n\u00a0\u2003\x1cab"))
def test_runs_of_white_space_become_single_spaces(text: str) -> None:
    assert snippets._spaced(text) == re.sub(r"\s+", " ", text)


@given(
    words=st.lists(st.sampled_from(["a", "ab", "b", "abc"])),
    phrase=st.lists(st.sampled_from(["a", "ab", "b"]), min_size=1, max_size=3),
    is_prefix=st.booleans(),
)
def test_a_phrase_is_counted_wherever_its_words_stand_side_by_side(
    words: list[str], phrase: list[str], is_prefix: bool
) -> None:
    ranked = RankedPhrase(Text(TextField.ANY, " ".join(phrase)), tuple(phrase), is_prefix)
    places = [[place for place, word in enumerate(words) if word == wanted] for wanted in phrase[:-1]]
    last = [place for place, word in enumerate(words) if ranked.ends_with(word)]
    assert ranked.count_in(words) == count_at([*places, last])
    assert not ranked.count_in(words) or ranked.may_be_in(" ".join(words))


@pytest.mark.parametrize("length", [50, 200, 201, 5_000])
def test_a_phrase_of_long_words_is_not_ruled_out_where_it_stands(length: int) -> None:
    text = f"see {'Ab' * length} there"
    phrase = RankedPhrase(Text(TextField.ANY, text), tuple(words_of(text)), is_prefix=False)
    assert phrase.may_be_in(folded_text(text))
    assert phrase.count_in(folded_words(folded_text(text))) == 1


class _Vocabulary:
    """An index of these words, each in a message of its own."""

    def __init__(self, words: Sequence[str]) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute("CREATE VIRTUAL TABLE search USING fts5 (x)")
        self._db.executemany("INSERT INTO search VALUES (?)", [(word,) for word in words])
        self._db.execute("CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab (main, search, row)")

    def vocabulary(self, sql: str, values: Sequence[object]) -> dict[str, int]:
        return dict(self._db.execute(sql, values).fetchall())

    def close(self) -> None:
        self._db.close()


@pytest.mark.parametrize("others", [0, 200, 255, 256, 257, 2_000])
@pytest.mark.parametrize("beginning", ["r", "re", "rec", "ret"])
def test_words_are_counted_alike_however_many_others_begin_so(others: int, beginning: str) -> None:
    there = ["rechnung", "rechnung", "sechnung", "echnung", "rechnungen"]
    wanted = {"rechnung", "sechnung", "echnung", "nowhere", *(f"rechn{number}" for number in range(40))}
    counts = Counter(there)
    with closing(_Vocabulary(there + [f"{beginning}{number:04}" for number in range(others)])) as shard:
        assert word_counts(shard, wanted) == {word: counts[word] for word in wanted if word in counts}
