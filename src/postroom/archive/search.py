"""Search over an archive: what it returns, what an archive must answer to be searched (`SearchQuestions`), and the page
tokens between two pages.

A page token says where a page ended, so the next page continues there even if mail has arrived in between.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from postroom.archive.folding import with_own_addresses, without_spam_and_trash
from postroom.archive.messages import LARGEST_ID, ArchivedMessage, ShardName, parse_filename
from postroom.archive.words.suggesting import corrected, doubtful_words, far_beginning, likely, near_words
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput, Fatal
from postroom.mail.query import parse
from postroom.mail.query.nodes import EVERYTHING, Node


class Sort(StrEnum):
    DATE = "date"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class Snippet:
    """A short piece of the message's text, plain; `marks` are the places (start, end) of what was searched for."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()
    attachment: str | None = None
    """The name of the attachment that the text is from; None: the message itself."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    message: ArchivedMessage
    snippet: Snippet


@dataclass(frozen=True, slots=True)
class ShardProblem:
    """A shard that could not be searched; the result lacks its messages."""

    shard: str
    problem: str


@dataclass(frozen=True, slots=True)
class SearchPage:
    hits: tuple[SearchHit, ...]
    next: str | None
    """The token of the next page; None on the last."""
    previous: str | None = None
    """As `before`, the token of the page before; None on the first, and where pages are ranked."""
    problems: tuple[ShardProblem, ...] = ()
    suggestion: str | None = None
    """A query that may have been meant, if it was asked for; see `Search.suggestion`."""


@dataclass(frozen=True, slots=True)
class SearchCount:
    messages: int
    is_exact: bool
    """False: there are at least this many."""
    problems: tuple[ShardProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivedThread:
    """All messages of a conversation, oldest first."""

    messages: tuple[ArchivedMessage, ...]
    problems: tuple[ShardProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivedThreads:
    """Messages of several conversations, newest first."""

    messages: tuple[ArchivedMessage, ...]
    problems: tuple[ShardProblem, ...] = ()


TimeLeft = Callable[[], float]
"""Seconds until a query is given up."""


class SearchQuestion(Protocol):
    """One query."""

    @property
    def problems(self) -> tuple[ShardProblem, ...]:
        """Shards that could not be searched so far."""

    def newest(self, limit: int, token: str | None) -> tuple[tuple[SearchHit, ...], str | None]:
        """The newest after the token, and the token of the next page."""

    def newer(self, limit: int, token: str) -> tuple[SearchHit, ...]:
        """The oldest of those that stand before the token, newest first."""

    def token_at(self, message: ArchivedMessage) -> str:
        """The token of what stands after this message, or before it."""

    def best(self, limit: int, token: str | None) -> tuple[tuple[SearchHit, ...], str | None]: ...

    def count(self, limit: int | None) -> tuple[int, bool]:
        """The number of matches, counted up to the limit, and whether that is all."""

    def message(self, key: str) -> ArchivedMessage | None: ...

    def labels(self) -> list[str]:
        """The owner's labels, by name."""

    def word_counts(self, words: Sequence[str]) -> dict[str, int]:
        """In about how many messages each of these words stands; those that stand nowhere are left out."""

    def words_like(self, beginning: str, shortest: int, longest: int) -> dict[str, int]:
        """The same for the words that begin so; of very many, some."""

    def thread(self, thread_id: str, newest: int | None, before: int | None) -> tuple[ArchivedMessage, ...]: ...

    def threads(self, thread_ids: Sequence[str], newest: int) -> tuple[ArchivedMessage, ...]:
        """Of all these conversations together the newest so many messages, newest first."""


class SearchQuestions(Protocol):
    def ask(self, node: Node, accounts: Sequence[str] | None, time_left: TimeLeft) -> SearchQuestion: ...

    def accounts(self) -> list[str]:
        """Accounts whose mail can be searched."""

    def close(self) -> None: ...


MOST_RANKED = 1_000
"""Ranked results end here, since every page ranks all previous ones again."""


@dataclass(frozen=True, slots=True)
class AfterMessage:
    """Newest first: everything older, and of the same instant everything in later shards."""

    shard: ShardName
    row_id: int

    def encoded(self) -> str:
        return encode_page_token([Sort.DATE, str(self.shard), self.row_id])

    def above(self, name: ShardName) -> int:
        """Ids in this shard of the same year that came before are at least this one."""
        return self.row_id if name < self.shard else self.row_id + 1

    def below(self, name: ShardName) -> int:
        """Ids in this shard of the same year that are still to come are below this one."""
        return self.row_id if name <= self.shard else self.row_id + 1


@dataclass(frozen=True, slots=True)
class AfterRank:
    rank: int

    def encoded(self) -> str:
        return encode_page_token([Sort.RANK, self.rank])


def after_message(token: str) -> AfterMessage:
    match decode_page_token(token):
        case [Sort.DATE, str(shard), int(row_id)] if (name := _shard(shard)) and 0 <= row_id <= LARGEST_ID:
            return AfterMessage(name, row_id)
    raise bad_page_token()


def after_rank(token: str) -> AfterRank:
    match decode_page_token(token):
        case [Sort.RANK, int(rank)] if 0 < rank <= MOST_RANKED:
            return AfterRank(rank)
    raise bad_page_token()


def encode_page_token(value: list[object]) -> str:
    return urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def decode_page_token(token: str) -> object:
    try:
        return json.loads(urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4)))
    except (ValueError, RecursionError):
        raise bad_page_token() from None


def _shard(text: str) -> ShardName | None:
    account, _, filename = text.rpartition("/")
    return parse_filename(account, filename)


def bad_page_token() -> BadInput:
    return BadInput("after", "this is not a page of this search; begin again without it")


MOST_HITS = 500
FEW_HITS = 2
"""With so few hits or none, another word may be meant."""
_MUCH_MORE = 10


class Search:
    """Safe to use from several threads. Readers never wait for writers, nor writers for them.

    A shard that cannot be read is named in the answer's `problems` and does not spoil the rest.
    """

    def __init__(self, archive: SearchQuestions, clock: Clock | None = None, patience_s: float = 30.0) -> None:
        """A query that takes longer than `patience_s` is given up."""
        self._archive = archive
        self._clock = clock or SystemClock()
        self._patience_s = patience_s

    def search(
        self,
        query: str,
        *,
        accounts: Sequence[str] | None = None,
        limit: int = 20,
        sort: Sort | str = Sort.DATE,
        after: str | None = None,
        before: str | None = None,
    ) -> SearchPage:
        """A page of what matches. `after` is the `next` of the page before, `before` the `previous` of the one after;
        where less than a page is newer, that is the first page."""
        if not 1 <= limit <= MOST_HITS:
            raise BadInput("limit", f"{limit} is not between 1 and {MOST_HITS}")
        ask = self._ask(query, accounts)
        if _sort(sort) is Sort.RANK:
            hits, following = ask.best(limit, after)
            return SearchPage(hits, following, problems=ask.problems)
        if before is not None and len(newer := ask.newer(limit + 1, before)) > limit:
            shown = newer[1:]
            here = [ask.token_at(hit.message) for hit in (shown[0], shown[-1])]
            return SearchPage(shown, here[1], here[0], ask.problems)
        after = None if before is not None else after
        hits, following = ask.newest(limit, after)
        previous = ask.token_at(hits[0].message) if after is not None and hits else None
        return SearchPage(hits, following, previous, ask.problems)

    def around(
        self,
        query: str,
        message: ArchivedMessage,
        *,
        accounts: Sequence[str] | None = None,
        patience_s: float | None = None,
    ) -> tuple[ArchivedMessage | None, ArchivedMessage | None]:
        """What stands right before and right after this message in a search: the next newer one, the next older."""
        ask = self._ask(query, accounts, patience_s)
        token = ask.token_at(message)
        newer, (older, _) = ask.newer(1, token), ask.newest(1, token)
        return (newer[0].message if newer else None), (older[0].message if older else None)

    def labels(self, accounts: Sequence[str] | None = None) -> list[str]:
        """Labels of the owner that some archived mail has or had, by name."""
        return self._question(EVERYTHING, accounts).labels()

    def count(
        self,
        query: str,
        *,
        accounts: Sequence[str] | None = None,
        limit: int | None = None,
        patience_s: float | None = None,
    ) -> SearchCount:
        """How many messages match; with a limit, counting stops there. `patience_s` is for a count that may fail."""
        if limit is not None and limit < 1:
            raise BadInput("limit", f"{limit} is less than 1")
        ask = self._ask(query, accounts, patience_s)
        messages, is_exact = ask.count(limit)
        return SearchCount(messages, is_exact, ask.problems)

    def suggestion(
        self, query: str, found: int, *, accounts: Sequence[str] | None = None, patience_s: float = 1.0
    ) -> str | None:
        """For a query that found so few messages: the same one with a word that the archive has, if it finds more.
        Spam and trash do not count unless the query names them. None also if looking takes too long."""
        if found > FEW_HITS:
            return None
        try:
            return self._suggestion(query, found, accounts, self._clock.monotonic() + patience_s)
        except BadInput:
            return None

    def _suggestion(self, query: str, found: int, accounts: Sequence[str] | None, until: float) -> str | None:
        wanted = max(found * _MUCH_MORE, 1)

        def time_left() -> float:
            return max(until - self._clock.monotonic(), 0.0)

        node = self._parsed(query)
        asked = self._question(EVERYTHING, accounts, time_left())
        for word in doubtful_words(node) if time_left() else ():
            for better in _better_words(asked, word):
                corrected_query = corrected(query, word, better)
                if (
                    self.count(corrected_query, accounts=accounts, limit=wanted, patience_s=time_left()).messages
                    >= wanted
                ):
                    return corrected_query
        return None

    def message(self, account: str, key: str) -> ArchivedMessage | None:
        """One message by its key; None if the archive does not have it."""
        ask = self._question(EVERYTHING, [account])
        found = ask.message(key)
        if found is None and ask.problems:
            first = ask.problems[0]
            raise Fatal(f"The message may be in {first.shard}, which cannot be read: {first.problem}")
        return found

    def thread(
        self, account: str, thread_id: str, *, newest: int | None = None, before: int | None = None
    ) -> ArchivedThread:
        """All messages of a thread, whichever shards they are in, spam and trash too.

        Of a very long one, only the newest so many, and only those before a row id.
        """
        ask = self._question(EVERYTHING, [account])
        messages = ask.thread(thread_id, newest, before)
        return ArchivedThread(messages, ask.problems)

    def threads(self, account: str, thread_ids: Sequence[str], *, newest: int) -> ArchivedThreads:
        """The newest so many messages of these conversations, spam and trash too. For a list, which shows many."""
        ask = self._question(EVERYTHING, [account])
        return ArchivedThreads(ask.threads(thread_ids, newest) if thread_ids else (), ask.problems)

    def accounts(self) -> list[str]:
        """Accounts whose mail can be searched."""
        return self._archive.accounts()

    def close(self) -> None:
        self._archive.close()

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, query: str, accounts: Sequence[str] | None, patience_s: float | None = None) -> SearchQuestion:
        mine = with_own_addresses(self._parsed(query), lambda: self.accounts() if accounts is None else accounts)
        return self._question(without_spam_and_trash(mine), accounts, patience_s)

    def _parsed(self, query: str) -> Node:
        readable = query.encode("utf-8", "replace").decode()  # half a character can be in no mail, nor in a database
        return parse(readable, int(self._clock.now().timestamp() * 1_000), strict=True)

    def _question(self, node: Node, accounts: Sequence[str] | None, patience_s: float | None = None) -> SearchQuestion:
        deadline = self._clock.monotonic() + (self._patience_s if patience_s is None else patience_s)
        return self._archive.ask(node, accounts, lambda: deadline - self._clock.monotonic())


def _better_words(asked: SearchQuestion, word: str) -> Iterator[str]:
    """One mistake away, else two; the most frequent first."""
    counts = asked.word_counts([word, *near_words(word)])
    near = likely(word, counts, most=1)
    yield from near
    beginning = far_beginning(word)
    if not near and beginning is not None:
        farther = asked.words_like(beginning, len(word) - 2, len(word) + 2)
        yield from likely(word, {**farther, word: counts.get(word, 0)}, most=2)


def _sort(sort: Sort | str) -> Sort:
    try:
        return Sort(sort)
    except ValueError:
        raise BadInput("sort", f"{sort!r} is not one of {', '.join(Sort)}") from None
