"""What ranking needs of one shard: how many messages have a phrase, and how often each candidate has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from postroom.archive.words.tokens import indexed_words
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
            words = {name: indexed_words(text or "") for name, text in zip(_TEXTS, texts, strict=True)}
            frequencies = [
                weighed(phrase, _counts(phrase, words) | {ATTACHMENTS: int(row_id in ids)})
                for phrase, ids in zip(phrases, attached, strict=True)
            ]
            found[row_id] = MatchedWords(tuple(frequencies), sum(_varints(sizes)[: len(_TEXTS)]))
    return found


def _counts(phrase: RankedPhrase, words: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {column: phrase.count_in(words[column]) for column in phrase.columns if column in words}


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
    numbers, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    return numbers
