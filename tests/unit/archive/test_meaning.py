"""The parts of searching by meaning: one ranking made of several, words of a query, and the file of vectors."""

from __future__ import annotations

import ctypes
import platform
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.archive.meaning.ranking import fused
from postroom.archive.meaning.vectors import (
    DIMENSIONS,
    AccountVectors,
    remove_vectors,
    text_embedder,
    text_to_embed,
    vectors_path,
    writing_vectors,
)
from postroom.archive.messages import TextRow
from postroom.domain.errors import Retryable
from postroom.mail.query import parse
from postroom.mail.query.nodes import And, HasAttachment, Or, Similar, Text, TextField
from postroom.mail.query.questions import any_word, plain_words, similar_to, without_words

pytestmark = pytest.mark.req("FD-3")

rankings = st.lists(st.lists(st.integers(0, 20), unique=True), max_size=4)
ME = "me@example.org"


def words(*spelled: str) -> tuple[Text, ...]:
    return tuple(Text(TextField.ANY, each) for each in spelled)


@given(rankings)
def test_a_fused_ranking_has_everything_once(given: list[list[int]]) -> None:
    whole = fused(*given)
    assert sorted(whole) == sorted({each for ranking in given for each in ranking})


@given(st.lists(st.integers(), unique=True), st.integers(1, 4))
def test_rankings_that_agree_stay_as_they_are(ranking: list[int], times: int) -> None:
    assert fused(*[ranking] * times) == ranking


@given(rankings)
def test_what_no_ranking_places_lower_and_one_higher_is_not_lower_in_the_end(
    given: list[list[int]],
) -> None:
    whole = fused(*given)
    for better in whole:
        for worse in whole:
            places = [
                (each.index(better) if better in each else 99, each.index(worse) if worse in each else 99)
                for each in given
            ]
            if all(one <= other for one, other in places) and any(one < other for one, other in places):
                assert whole.index(better) < whole.index(worse)


def test_a_query_is_content_with_any_word_but_not_without_its_conditions() -> None:
    node = parse('when did I visit the dentist from:ann "root canal" has:attachment', 0)
    assert plain_words(node) == ["when", "did", "I", "visit", "the", "dentist"]
    rest = (Text(TextField.FROM, "ann"), Text(TextField.ANY, "root canal"), HasAttachment())
    assert without_words(node) == And(rest)
    assert any_word(node) == And((Or(words("visit*", "dentist*")), *rest))


def test_a_query_of_words_that_say_nothing_stays_as_it_is() -> None:
    node = parse("who is it", 0)
    assert any_word(node) == node


def test_similar_stands_once_beside_the_other_terms() -> None:
    assert similar_to(parse("similar:18f0 from:ann", 0)) == (Similar("18f0"), And((Text(TextField.FROM, "ann"),)))
    assert similar_to(parse("lunch", 0)) == (None, And(words("lunch")))
    for wrong in ("-similar:a1", "similar:a1 OR lunch", "similar:a1 similar:b2"):
        with pytest.raises(ValueError, match="once"):
            similar_to(parse(wrong, 0))


def test_alike_texts_have_vectors_close_to_each_other_and_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*anything: Any) -> None:
        raise AssertionError("the network is not needed")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    text_embedder.cache_clear()
    texts = ["The doctor examined my tooth", "Dentist appointment on Monday", "Quarterly revenue rose", ""]
    tooth, dentist, revenue, nothing = text_embedder().embed(texts)
    assert tooth @ dentist > tooth @ revenue
    assert tooth @ tooth == pytest.approx(1, abs=1e-5)
    assert not nothing.any()


def test_quoted_lines_of_others_do_not_count() -> None:
    assert text_to_embed("Re: Lunch", "> Shall we?\nYes, at noon.\n") == "Re: Lunch\nYes, at noon."
    assert text_to_embed("Fwd", "> Only this.\n") == "Fwd\n> Only this.\n"


def row(number: int, check: int = 1, part: int = 1) -> TextRow:
    return TextRow(2024, part, number, check)


def write(root: Path, rows: list[TextRow], texts: list[str], **options: bool) -> None:
    with writing_vectors(root, ME, **options) as writer:
        writer.write(rows, text_embedder().embed(texts))


def found(root: Path, text: str, most: int = 10) -> list[int]:
    [vector] = text_embedder().embed([text])
    return [each.row_id for _, each in AccountVectors.open(root, ME).nearest(vector, most)]


TEXTS = ["My tooth hurts", "The invoice is attached", "Goals of the football match"]


def test_the_nearest_come_first_and_the_file_has_no_word_of_the_mail(tmp_path: Path) -> None:
    write(tmp_path, [row(1), row(2), row(3)], TEXTS)
    assert found(tmp_path, "dentist", most=1) == [1]
    assert found(tmp_path, "bill and payment", most=1) == [2]
    [(score, _)] = AccountVectors.open(tmp_path, ME).nearest(text_embedder().embed([TEXTS[0]])[0], 1)
    assert score == pytest.approx(1, abs=0.01)
    content = vectors_path(tmp_path, ME).read_bytes()
    assert not any(word.encode() in content for text in TEXTS for word in text.split() if len(word) > 3)
    assert vectors_path(tmp_path, ME).stat().st_mode & 0o077 == 0


def test_a_record_that_was_torn_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, [row(1), row(2)], TEXTS[:2])
    path = vectors_path(tmp_path, ME)
    path.write_bytes(path.read_bytes()[:-10])
    assert len(AccountVectors.open(tmp_path, ME)) == 1
    with writing_vectors(tmp_path, ME) as writer:
        assert [writer.lacks(row(number)) for number in (1, 2)] == [False, True]
    write(tmp_path, [row(2)], TEXTS[1:2])
    assert found(tmp_path, "invoice") == [2, 1]


def test_a_message_with_other_bytes_gets_another_vector_in_the_same_place(tmp_path: Path) -> None:
    write(tmp_path, [row(1), row(2)], TEXTS[:2])
    with writing_vectors(tmp_path, ME) as writer:
        assert writer.lacks(row(1, check=2))
        assert writer.lacks(row(1, part=2))
    write(tmp_path, [row(1, check=2)], TEXTS[2:])
    vectors = AccountVectors.open(tmp_path, ME)
    assert len(vectors) == 2
    assert found(tmp_path, "football", most=1) == [1]
    assert vectors.vector_of(1, 1) is None
    vector = vectors.vector_of(1, 2)
    assert vector is not None
    assert vector.shape == (DIMENSIONS,)


def test_vectors_of_another_version_of_the_model_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [row(1)], TEXTS[:1])
    monkeypatch.setattr("postroom.archive.meaning.vectors.model_version", lambda: "another one")
    assert len(AccountVectors.open(tmp_path, ME)) == 0
    with writing_vectors(tmp_path, ME) as writer:
        assert writer.lacks(row(1))


def test_one_at_a_time_writes_and_readers_keep_what_they_had(tmp_path: Path) -> None:
    write(tmp_path, [row(1)], TEXTS[:1])
    reading = AccountVectors.open(tmp_path, ME)
    with writing_vectors(tmp_path, ME, anew=True), pytest.raises(Retryable), writing_vectors(tmp_path, ME):
        pass
    assert list(reading.rows()) == [(1, 1)]
    assert len(AccountVectors.open(tmp_path, ME)) == 0


def test_vectors_of_accounts_that_are_gone_are_removed(tmp_path: Path) -> None:
    write(tmp_path, [row(1)], TEXTS[:1])
    remove_vectors(tmp_path, [ME])
    assert vectors_path(tmp_path, ME).exists()
    remove_vectors(tmp_path, [])
    assert not list(vectors_path(tmp_path, ME).parent.iterdir())


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or sys.maxsize < 2**32, reason="asks a 64-bit glibc")
def test_no_text_is_kept_in_memory_once_it_has_its_vector() -> None:
    used = ctypes.CDLL(None).mallinfo2
    used.restype = _Heap
    embedder = text_embedder()
    texts = [f"Number {number} of many letters, each with its own words. " * 3 for number in range(1_000)]
    embedder.embed(texts[:1])
    before = used().uordblks
    embedder.embed(texts)
    assert used().uordblks - before < 1_000_000
