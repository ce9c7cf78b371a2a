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
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from postroom.archive.conversations.forest import (
    ConversationMember,
    ConversationMembers,
    ConversationPerson,
    without_copies,
)
from postroom.archive.folding import with_conversations, with_own_addresses, without_spam_and_trash
from postroom.archive.messages import LARGEST_ID, ArchivedMessage, ShardName, account_name, parse_filename
from postroom.archive.words.suggesting import (
    corrected,
    doubtful_words,
    far_beginning,
    is_known,
    likely,
    near_words,
)
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput, Fatal
from postroom.domain.extras import Extra, ExtraMissing, is_installed
from postroom.mail.query import parse
from postroom.mail.query.nodes import EVERYTHING, ConversationBy, InConversation, MessageId, Node, Similar
from postroom.mail.query.questions import similar_to

if TYPE_CHECKING:
    from postroom.archive.meaning.vectors import VectorFolder


class Sort(StrEnum):
    DATE = "date"
    RANK = "rank"
    BEST = "best"
    """By words and by meaning; of the extra `meaning`."""


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


@dataclass(frozen=True, slots=True)
class ArchivedConversation:
    """The messages of a conversation in all searched accounts, oldest first, each of them once."""

    name: str | None
    """For `thread:`; None while the message is not in the index of conversations."""
    messages: tuple[ArchivedMessage, ...]
    count: int
    """Of all its messages there, of which a long one shows some; of those shown while it is not indexed."""
    people: tuple[ConversationPerson, ...]
    problems: tuple[ShardProblem, ...] = ()


class FoundRow(NamedTuple):
    """A message that a query found, by where it lies; as `TextRow` has it."""

    account: str
    year: int
    part: int
    row_id: int


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

    def ranked(self, most: int) -> list[FoundRow]:
        """The best so many, without reading them."""

    def among(self, rows: Sequence[FoundRow]) -> set[FoundRow]:
        """Those of the rows that match."""

    def hits(self, rows: Sequence[FoundRow]) -> tuple[SearchHit, ...]:
        """These messages, in their order; those that are gone are left out."""

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

    def at(self, places: Sequence[tuple[str, int]]) -> tuple[ArchivedMessage, ...]:
        """The messages at these places of the index of conversations, in any order."""

    def threads(self, thread_ids: Sequence[str], newest: int) -> tuple[ArchivedMessage, ...]:
        """Of all these conversations together the newest so many messages, newest first."""


class SearchQuestions(Protocol):
    def ask(self, node: Node, accounts: Sequence[str] | None, time_left: TimeLeft) -> SearchQuestion: ...

    def accounts(self) -> list[str]:
        """Accounts whose mail can be searched."""

    def conversation_named(self, name: str) -> str | None:
        """The conversation that has or had this name; None where there is none."""

    def conversations_of(self, messages: Sequence[ArchivedMessage]) -> list[str | None]:
        """The name of each one's conversation; None where it is not indexed yet."""

    def members(self, conversations: Sequence[str], accounts: Sequence[str] | None) -> ConversationMembers:
        """Of all these conversations together."""

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

    def __init__(
        self,
        archive: SearchQuestions,
        clock: Clock | None = None,
        patience_s: float = 30.0,
        vectors: Path | None = None,
    ) -> None:
        """A query that takes longer than `patience_s` is given up. `vectors` is the folder below which they are."""
        self._archive = archive
        self._vectors = vectors
        self._folder: VectorFolder | None = None
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
        wanted, node = _sort(sort), self._meant(query, accounts)
        similar, rest = _similar_to(node)
        if similar is not None or wanted is Sort.BEST:
            return self._by_meaning(similar, rest, accounts, limit, after)
        ask = self._question(node, accounts)
        if wanted is Sort.RANK:
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
        node = self._meant(query, accounts)
        if _similar_to(node)[0] is not None:
            return None, None  # such a list does not follow the dates
        ask = self._question(node, accounts, patience_s)
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
        node = self._meant(query, accounts)
        similar, rest = _similar_to(node)
        if similar is not None:
            rows, ask = self._ranking(similar, rest, accounts, MOST_RANKED)
            shown = len(rows) if limit is None else min(len(rows), limit)
            return SearchCount(shown, len(rows) == shown < MOST_RANKED, ask.problems)
        ask = self._question(node, accounts, patience_s)
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

    def conversation(
        self,
        message: ArchivedMessage,
        *,
        accounts: Sequence[str] | None = None,
        newest: int | None = None,
        before: int | None = None,
    ) -> ArchivedConversation:
        """The conversation of a message, in all accounts or in these, spam and trash too. Of copies of one message, the
        one in the message's own account is given. Mail that is not indexed yet is found by its thread there."""
        [name] = self._archive.conversations_of([message])
        thread = self.thread(message.account, message.thread_id, newest=newest, before=before)
        if name is None:
            return ArchivedConversation(None, thread.messages, len(thread.messages), (), thread.problems)
        indexed = self._archive.conversations_of(thread.messages)
        late = [each for each, known in zip(thread.messages, indexed, strict=True) if known is None]
        found = self._archive.members([name], None if accounts is None else list(map(account_name, accounts)))
        members = without_copies(found.members, message.account)
        earlier = sorted((each for each in members if before is None or each.row_id < before), key=_by_row)
        ask = self._question(EVERYTHING, accounts)
        messages = ask.at([(each.place, each.row_id) for each in earlier[-newest if newest else 0 :]])
        latest = sorted([*messages, *late], key=lambda each: each.row_id)[-newest if newest else 0 :]
        ordered = sorted(latest, key=lambda each: (each.date, each.row_id, each.shard))
        problems = tuple(dict.fromkeys([*thread.problems, *ask.problems]))
        return ArchivedConversation(name, tuple(ordered), len(members) + len(late), found.people, problems)

    def conversation_names(self, messages: Sequence[ArchivedMessage]) -> list[str | None]:
        """The name of each one's conversation; None where it is not indexed yet."""
        return self._archive.conversations_of(messages) if messages else []

    def in_conversations(self, names: Sequence[str], *, account: str, newest: int) -> ArchivedThreads:
        """The newest so many messages of these conversations in an account. For a list, which shows many."""
        members = self._archive.members(names, [account_name(account)]).members[:newest]
        ask = self._question(EVERYTHING, [account])
        messages = ask.at([(each.place, each.row_id) for each in members])
        return ArchivedThreads(tuple(sorted(messages, key=lambda each: each.row_id, reverse=True)), ask.problems)

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

    def related(self, message: ArchivedMessage, most: int) -> tuple[SearchHit, ...]:
        """Messages of other conversations of the same mailbox that mean much the same; none without the extra, or as
        long as its vector is not made."""
        if self._vectors is None or not is_installed(Extra.MEANING):
            return ()
        from postroom.archive.meaning.ranking import related_to  # numpy is slow to load, and is an extra

        rest = without_spam_and_trash(EVERYTHING)
        return related_to(message, self._opened(self._vectors), self._question(rest, [message.account]), most)

    def _opened(self, root: Path) -> VectorFolder:
        from postroom.archive.meaning.vectors import VectorFolder

        if self._folder is None:
            self._folder = VectorFolder(root)
        return self._folder

    def _by_meaning(
        self, similar: Similar | None, rest: Node, accounts: Sequence[str] | None, limit: int, after: str | None
    ) -> SearchPage:
        start = after_rank(after).rank if after else 0
        end = min(start + limit, MOST_RANKED)
        rows, ask = self._ranking(similar, rest, accounts, end + 1)
        following = AfterRank(end).encoded() if len(rows) > end and end < MOST_RANKED else None
        return SearchPage(ask.hits(rows[start:end]), following, problems=ask.problems)

    def _ranking(
        self, similar: Similar | None, rest: Node, accounts: Sequence[str] | None, most: int
    ) -> tuple[list[FoundRow], SearchQuestion]:
        what = "query" if similar is not None else "sort"
        if not is_installed(Extra.MEANING):
            raise BadInput(what, ExtraMissing(Extra.MEANING, "similar:" if similar is not None else "best").message)
        if self._vectors is None:
            raise BadInput(what, "this archive was opened without a folder for vectors")
        from postroom.archive.meaning.ranking import MeaningRanking

        names = self.accounts() if accounts is None else [account_name(account) for account in accounts]
        ranking = MeaningRanking(self._opened(self._vectors), names, lambda node: self._question(node, names))
        return ranking.by_words(rest, most) if similar is None else ranking.by_message(similar.key, rest, most)

    def _meant(self, query: str, accounts: Sequence[str] | None) -> Node:
        mine = with_own_addresses(self._parsed(query), lambda: self.accounts() if accounts is None else accounts)
        mine = with_conversations(mine, lambda value: self._conversation_meant(value, accounts))
        return without_spam_and_trash(mine)

    def _conversation_meant(self, value: str, accounts: Sequence[str] | None) -> InConversation:
        """The conversation that a person named: by its name, by a message's key or Message-ID, or by a thread."""
        if (known := self._archive.conversation_named(value)) is not None:
            return InConversation(known, ConversationBy.ROOT)
        ask = self._question(EVERYTHING, self.accounts() if accounts is None else accounts)
        message = ask.message(value) or next(iter(ask.thread(value, 1, None)), None)
        if message is None and value.startswith("<"):
            hits, _ = self._question(MessageId(value.strip("<>")), accounts).newest(1, None)
            message = hits[0].message if hits else None
        [name] = self._archive.conversations_of([message]) if message is not None else [None]
        if name is not None:
            return InConversation(name, ConversationBy.ROOT)
        return InConversation(value if message is None else message.thread_id, ConversationBy.THREAD)

    def _parsed(self, query: str) -> Node:
        readable = query.encode("utf-8", "replace").decode()  # half a character can be in no mail, nor in a database
        return parse(readable, int(self._clock.now().timestamp() * 1_000), strict=True)

    def _question(self, node: Node, accounts: Sequence[str] | None, patience_s: float | None = None) -> SearchQuestion:
        deadline = self._clock.monotonic() + (self._patience_s if patience_s is None else patience_s)
        return self._archive.ask(node, accounts, lambda: deadline - self._clock.monotonic())


def _by_row(member: ConversationMember) -> tuple[int, str]:
    return member.row_id, member.place


def _similar_to(node: Node) -> tuple[Similar | None, Node]:
    try:
        return similar_to(node)
    except ValueError as error:
        raise BadInput("query", str(error)) from None


def _better_words(asked: SearchQuestion, word: str) -> Iterator[str]:
    """One mistake away, else two; the most frequent first. Most words are right, which one look tells."""
    if is_known(asked.word_counts([word]).get(word, 0)):
        return
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
