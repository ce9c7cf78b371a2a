"""Rankings by meaning: mail like a message, and mail for words, where the rankings by words and by meaning are one.

Of the extra `meaning`: import this where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from postroom.archive.meaning.vectors import AccountVectors, VectorFolder, text_embedder
from postroom.archive.messages import ArchivedMessage, check_of
from postroom.archive.search import MOST_RANKED, FoundRow, SearchHit, SearchQuestion
from postroom.domain.errors import BadInput, NotFound
from postroom.mail.query.nodes import EVERYTHING, Node, Text, TextField
from postroom.mail.query.questions import any_word, required_terms, without_words

T = TypeVar("T", bound=Hashable)
Ask = Callable[[Node], SearchQuestion]
_LOOKED_AT = (1_000, 20_000)
"""So many of the nearest are asked whether the rest of the query finds them; more, if too few of them are."""
_FUSED = 100
"""Places of each ranking that count; a message beyond them in one is helped by it no more."""
_ALIKE = 0.45
"""What is less alike is not called related. Of pairs of messages drawn by chance, one in a hundred is more alike."""


class MeaningRanking:
    def __init__(self, vectors: VectorFolder, accounts: Sequence[str], ask: Ask) -> None:
        """Only the mail of these accounts is found."""
        self._folder = vectors
        self._accounts = accounts
        self._ask = ask

    def by_words(self, node: Node, most: int) -> tuple[list[FoundRow], SearchQuestion]:
        """The best for the words of a query, of which none need be there; all else that it asks for is a condition."""
        loose = self._ask(any_word(node))
        text = " ".join(words_meant(node))
        if not text:
            return loose.ranked(most), loose
        [vector] = text_embedder().embed([text])
        depth = max(most, _FUSED)
        near = nearest(self._vectors(), vector, self._ask(without_words(node)), depth)
        return fused(loose.ranked(depth), near)[:MOST_RANKED], loose

    def by_message(self, key: str, rest: Node, most: int) -> tuple[list[FoundRow], SearchQuestion]:
        """Mail that the rest of the query finds, the most alike first, without the message itself."""
        message = self._ask(EVERYTHING).message(key)
        if message is None:
            raise NotFound("query", f"similar: the archive has no message {key}")
        vector = _vector(self._folder.of(message.account), message)
        if vector is None:
            raise BadInput(
                "query",
                f"similar: what {key} means is not worked out yet; a worker does that in the background, and "
                "`postroom archive vectors` shows how far it is",
            )
        question = self._ask(rest)
        return nearest(self._vectors(), vector, question, most, without=message), question

    def _vectors(self) -> dict[str, AccountVectors]:
        return {account: self._folder.of(account) for account in self._accounts}


def words_meant(node: Node) -> list[str]:
    """What a query says in words, apart from what must not be there."""
    said = (TextField.ANY, TextField.SUBJECT)
    return [term.words.rstrip("*") for term in required_terms(node) if isinstance(term, Text) and term.field in said]


def nearest(
    vectors: dict[str, AccountVectors],
    vector: Any,
    question: SearchQuestion,
    most: int,
    *,
    without: ArchivedMessage | None = None,
    least: float = -1.0,
) -> list[FoundRow]:
    """What the question finds, the most alike first."""
    kept: list[FoundRow] = []
    for looked_at in _LOOKED_AT:
        near = [
            (score, FoundRow(account, row.year, row.part, row.row_id))
            for account, mine in vectors.items()
            for score, row in mine.nearest(vector, looked_at)
            if score >= least and not (without is not None and _is_of(account, row.row_id, row.check, without))
        ]
        rows = [row for _, row in sorted(near, key=lambda each: -each[0])[:looked_at]]
        matching = question.among(rows)
        kept = [row for row in rows if row in matching][:most]
        if len(kept) >= most or len(rows) < looked_at:
            break
    return kept


def related_to(
    message: ArchivedMessage, vectors: VectorFolder, question: SearchQuestion, most: int
) -> tuple[SearchHit, ...]:
    """What the question finds that is much like the message and of another conversation."""
    mine = vectors.of(message.account)
    vector = _vector(mine, message)
    if vector is None:
        return ()
    rows = nearest({message.account: mine}, vector, question, 10 * most, without=message, least=_ALIKE)
    found: dict[str, SearchHit] = {}
    for hit in question.hits(rows):
        if hit.message.thread_id != message.thread_id:
            found.setdefault(hit.message.thread_id, hit)
    return tuple(found.values())[:most]


def _vector(vectors: AccountVectors, message: ArchivedMessage) -> Any | None:
    return vectors.vector_of(message.row_id, check_of(bytes.fromhex(message.sha256)))


def _is_of(account: str, row_id: int, check: int, message: ArchivedMessage) -> bool:
    mine = (message.account, message.row_id, check_of(bytes.fromhex(message.sha256)))
    return (account, row_id, check) == mine


_DAMPING = 60
"""The customary value: the first places count more than later ones, but no single first place decides."""


def fused(*rankings: Sequence[T]) -> list[T]:
    """Everything that one of them has, once, the best first. Each place counts 1 / (60 + place); of equal sums, the
    one whose best place is better comes first, then the one that an earlier ranking has."""
    sums: dict[T, float] = {}
    best: dict[T, int] = {}
    for ranking in rankings:
        for place, each in enumerate(dict.fromkeys(ranking), 1):
            sums[each] = sums.get(each, 0.0) + 1 / (_DAMPING + place)
            best[each] = min(place, best.get(each, place))
    return sorted(sums, key=lambda each: (-sums[each], best[each]))
