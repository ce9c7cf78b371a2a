"""What ranking needs of one shard: how many messages have a phrase, and how often each candidate has it; and the words
of its index, for other spellings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

from postroom.archive.folding import segmented
from postroom.archive.shards.selecting import expression
from postroom.archive.shards.shard_file import ATTACHMENT_TEXTS_SINCE, SEGMENTED_SINCE
from postroom.archive.words.ranking import (
    ATTACHMENTS,
    COLUMNS,
    MOST_CHARACTERS,
    MatchedWords,
    PhraseCounts,
    RankedPhrase,
    weighed,
)
from postroom.archive.words.tokens import folded_text, folded_words
from postroom.mail.query.nodes import Node, Text, TextField

_TEXTS = COLUMNS[:-1]
_BEGINNINGS = ", ".join(f"substr(t.{name}, 1, {MOST_CHARACTERS})" for name in _TEXTS)
_IDS_AT_ONCE = 100


class RankedShard(Protocol):
    """One shard, read-only."""

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def version(self) -> int: ...


def count_phrases(shard: RankedShard, phrases: Sequence[RankedPhrase]) -> PhraseCounts:
    """Answered by the index alone."""
    version = shard.version()
    sql = "SELECT count(*) FROM search WHERE search MATCH ?"
    counts = [
        0 if match is None else int(shard.query(sql, (match,))[0][0])
        for match in (_match(phrase.text, version) for phrase in phrases)
    ]
    [(averages,)] = shard.query("SELECT block FROM search_data WHERE id = 1") or [(b"",)]
    return PhraseCounts(next(iter(_varints(averages)), 0), tuple(counts))


def matched_in(shard: RankedShard, phrases: Sequence[RankedPhrase], row_ids: Sequence[int]) -> dict[int, MatchedWords]:
    attached = [_attached(shard, phrase) for phrase in phrases]
    found: dict[int, MatchedWords] = {}
    for start in range(0, len(row_ids), _IDS_AT_ONCE):
        some = tuple(row_ids[start : start + _IDS_AT_ONCE])
        sql = (
            f"SELECT t.id, d.sz, {_BEGINNINGS} FROM texts t "
            f"JOIN search_docsize d ON d.id = t.id WHERE t.id IN ({', '.join('?' * len(some))})"
        )
        for row_id, sizes, *texts in shard.query(sql, some):
            folded = {name: folded_text(text) for name, text in zip(_TEXTS, texts, strict=True) if text}
            words: dict[str, list[str]] = {}
            frequencies = [
                weighed(phrase, _counts(phrase, folded, words) | {ATTACHMENTS: int(row_id in ids)})
                for phrase, ids in zip(phrases, attached, strict=True)
            ]
            found[row_id] = MatchedWords(tuple(frequencies), sum(_varints(sizes)[: len(_TEXTS)]))
    return found


def _counts(phrase: RankedPhrase, folded: Mapping[str, str], words: dict[str, list[str]]) -> dict[str, int]:
    """`words` keeps the words of the columns for the next phrase: to cut a text costs more than to count in it."""
    found: dict[str, int] = {}
    for column in phrase.columns:
        if (text := folded.get(column)) and phrase.may_be_in(text):
            if column not in words:
                words[column] = folded_words(text)
            found[column] = phrase.count_in(words[column])
    return found


def _attached(shard: RankedShard, phrase: RankedPhrase) -> set[int]:
    """Messages whose attachments have the phrase, by the index: their texts are long."""
    if ATTACHMENTS not in phrase.columns or shard.version() < ATTACHMENT_TEXTS_SINCE:
        return set()
    match = _match(Text(TextField.ATTACHMENT, phrase.text.words), shard.version())
    return {row_id for (row_id,) in shard.query("SELECT rowid FROM search WHERE search MATCH ?", (match,))}


def _match(text: Text, version: int) -> str | None:
    if version < ATTACHMENT_TEXTS_SINCE and text.field is TextField.ATTACHMENT:
        return None
    node: Node = segmented(text) if version >= SEGMENTED_SINCE else text
    return expression(node)


def _varints(data: bytes) -> list[int]:
    """Numbers as SQLite writes them into its own tables, seven bits in a byte; ours never take nine bytes."""
    if data.isascii():
        return list(data)
    numbers, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    return numbers


_MOST_WORDS = 5_000
_MOST_SCANNED = 256
_MANY = 32
_BEGINNINGS_SCANNED = (2, 3)  # letters


class WordShard(Protocol):
    def vocabulary(self, sql: str, values: Sequence[Any]) -> dict[str, int]:
        """An answer from `temp.vocabulary`."""


def word_counts(shard: WordShard, words: Set[str]) -> dict[str, int]:
    """In how many messages each of these words stands; those that stand nowhere are left out.

    Many words that begin alike, as other spellings of one do, are found by reading what begins so, unless that is too
    much: looking up a word takes as long as reading a dozen.
    """
    found: dict[str, int] = {}
    for letters in _BEGINNINGS_SCANNED:
        [(beginning, many)] = Counter(word[:letters] for word in words).most_common(1) or [("", 0)]
        if many < _MANY:
            break
        sql = f"SELECT term, doc FROM temp.vocabulary WHERE term >= ? AND term < ? LIMIT {_MOST_SCANNED}"
        there = shard.vocabulary(sql, (beginning, _after(beginning)))
        if len(there) < _MOST_SCANNED:
            found = {word: count for word, count in there.items() if word in words}
            words = {word for word in words if not word.startswith(beginning)}
            break
    sql = "SELECT term, doc FROM json_each(?) CROSS JOIN temp.vocabulary WHERE term = value"
    return found | shard.vocabulary(sql, (json.dumps(sorted(words)),))


def words_beginning(shard: WordShard, beginning: str, shortest: int, longest: int) -> dict[str, int]:
    """The same for the words that begin so; of very many, some."""
    sql = (
        "SELECT term, doc FROM temp.vocabulary WHERE term >= ? AND term < ? "
        f"AND length(term) BETWEEN ? AND ? LIMIT {_MOST_WORDS}"
    )
    return shard.vocabulary(sql, (beginning, _after(beginning), shortest, longest))


def _after(beginning: str) -> str:
    return f"{beginning}\U0010ffff"
