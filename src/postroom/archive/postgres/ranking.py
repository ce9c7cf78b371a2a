"""What ranking needs of the tables in PostgreSQL: how many messages have a phrase, and how often each candidate has it.

The positions in the index tell how often; where it has not all of them, the words in their order do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from postroom.archive.postgres.connections import ArchiveSession
from postroom.archive.postgres.words import TAGS
from postroom.archive.words import ranking
from postroom.mail.query.nodes import TextField

_EXACT = 20_000
"""Up to here messages are counted; beyond, the server's own estimate is as good."""
_TAG_OF = {
    "subject": TAGS[TextField.SUBJECT],
    "sender": TAGS[TextField.FROM],
    "cc": TAGS[TextField.CC],
    "bcc": TAGS[TextField.BCC],
    "filenames": TAGS[TextField.FILENAME],
    "list": TAGS[TextField.LIST],
    ranking.ATTACHMENTS: TAGS[TextField.ATTACHMENT],
}
_TO, _ANY = TAGS[TextField.TO], TAGS[TextField.ANY]
_MATCHED = (
    "SELECT m.account, m.id, "
    f"(SELECT array_agg(left(f.words, {ranking.MOST_CHARACTERS}) ORDER BY f.number) "
    "FROM unnest(m.folded) WITH ORDINALITY f (words, number)), "
    "(SELECT sum(CASE WHEN u.lexeme LIKE 'a:%%' THEN -cardinality(u.positions) "
    "WHEN strpos(u.lexeme, ':') = 0 OR u.lexeme LIKE 'l:%%' THEN cardinality(u.positions) END) "
    "FROM unnest(m.tokens) u), "
    "(SELECT jsonb_object_agg(u.lexeme, u.positions) FROM unnest(m.tokens) u "
    "WHERE u.lexeme = ANY(%s) OR u.lexeme ^@ ANY(%s)) "
    "FROM archive.entries m WHERE m.account = ANY(%s) AND m.id = ANY(%s)"
)


def count_messages(session: ArchiveSession, condition: str, values: Sequence[Any]) -> int:
    """How many index entries satisfy a condition; exact where they are not very many."""
    sql = f"SELECT 1 FROM archive.entries m WHERE {condition}"
    [(counted,)] = session.query(f"SELECT count(*) FROM ({sql} LIMIT {_EXACT}) AS counted", values)
    if counted < _EXACT:
        return int(counted)
    [(plan,)] = session.query(f"EXPLAIN (FORMAT JSON) {sql}", values)
    return max(int(plan[0]["Plan"]["Plan Rows"]), _EXACT)


def count_phrases(
    session: ArchiveSession, phrases: Sequence[tuple[str, Sequence[Any]]], searched: tuple[str, Sequence[Any]]
) -> ranking.PhraseCounts:
    """Phrases, and what is searched at all, as conditions with their values."""
    condition, values = searched
    counts = [count_messages(session, f"{condition} AND {sql}", (*values, *more)) for sql, more in phrases]
    return ranking.PhraseCounts(count_messages(session, condition, values), tuple(counts))


def matched_in(
    session: ArchiveSession, phrases: Sequence[ranking.RankedPhrase], accounts: Sequence[int], ids: Sequence[int]
) -> dict[tuple[int, int], ranking.MatchedWords]:
    tags = (*TAGS.values(),)
    whole = [f"{tag}{word}" for tag in tags for phrase in phrases for word in phrase.words]
    begun = [f"{tag}{phrase.words[-1]}" for tag in tags for phrase in phrases if phrase.is_prefix]
    return {
        (account, row_id): (
            _by_positions(phrases, positions or {}, length or 0) if folded is None else _by_words(phrases, folded)
        )
        for account, row_id, folded, length, positions in session.query(
            _MATCHED, (whole, begun, list(accounts), list(ids))
        )
    }


def _by_positions(
    phrases: Sequence[ranking.RankedPhrase], positions: Mapping[str, Sequence[int]], length: int
) -> ranking.MatchedWords:
    return ranking.MatchedWords(
        tuple(ranking.weighed(phrase, _counts(phrase, positions)) for phrase in phrases), length
    )


def _counts(phrase: ranking.RankedPhrase, positions: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """How often each column has it: all but the list are also under no tag, and `to` has the hidden recipients too."""
    counts = {column: _count(phrase, tag, positions) for column, tag in _TAG_OF.items()}
    counts["recipients"] = _count(phrase, _TO, positions) - counts["bcc"]
    others = sum(count for column, count in counts.items() if column != "list")
    return counts | {"body": _count(phrase, _ANY, positions) - others}


def _count(phrase: ranking.RankedPhrase, tag: str, positions: Mapping[str, Sequence[int]]) -> int:
    places = [positions.get(f"{tag}{word}", ()) for word in phrase.words[:-1]]
    last = f"{tag}{phrase.words[-1]}"
    if not phrase.is_prefix:
        return ranking.count_at([*places, positions.get(last, ())])
    begun = [lexeme for lexeme in positions if lexeme.startswith(last) and (tag or ":" not in lexeme)]
    return ranking.count_at([*places, [place for lexeme in begun for place in positions[lexeme]]])


def _by_words(phrases: Sequence[ranking.RankedPhrase], folded: Sequence[str]) -> ranking.MatchedWords:
    words = dict(zip(ranking.COLUMNS, (text.split() for text in folded), strict=False))
    frequencies = [
        ranking.weighed(phrase, {column: phrase.count_in(words.get(column, [])) for column in phrase.columns})
        for phrase in phrases
    ]
    return ranking.MatchedWords(tuple(frequencies), sum(len(words.get(column, [])) for column in ranking.COLUMNS[:-1]))
