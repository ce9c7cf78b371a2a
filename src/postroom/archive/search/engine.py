"""Search over an archive: reads a query, asks the shards, gives back a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from postroom.archive.model import ArchivedMessage
from postroom.archive.search.asking import ShardQuestions
from postroom.archive.search.folding import without_spam_and_trash
from postroom.archive.search.model import Count, Page, Sort, Thread
from postroom.archive.search.questions import Question, Questions
from postroom.archive.search.shards import ShardFolder
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput, Fatal
from postroom.mail.query import parse
from postroom.mail.query.nodes import EVERYTHING, Node

MOST_HITS = 500


class Search:
    """Safe to use from several threads. Readers never wait for writers, nor writers for them.

    A shard that cannot be read is named in the answer's `problems` and does not spoil the rest.
    """

    def __init__(self, archive: Path | Questions, clock: Clock | None = None, patience_s: float = 30.0) -> None:
        """A path is the folder of the shards. A query that takes longer than `patience_s` is given up."""
        self._archive: Questions = ShardQuestions(ShardFolder(archive)) if isinstance(archive, Path) else archive
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
    ) -> Page:
        """A page of what matches. `after` is the `next` of the page before."""
        if not 1 <= limit <= MOST_HITS:
            raise BadInput("limit", f"{limit} is not between 1 and {MOST_HITS}")
        ask = self._ask(query, accounts)
        hits, following = ask.best(limit, after) if _sort(sort) is Sort.RANK else ask.newest(limit, after)
        return Page(hits, following, ask.problems)

    def count(self, query: str, *, accounts: Sequence[str] | None = None, limit: int | None = None) -> Count:
        """How many messages match; with a limit, counting stops there."""
        if limit is not None and limit < 1:
            raise BadInput("limit", f"{limit} is less than 1")
        ask = self._ask(query, accounts)
        messages, is_exact = ask.count(limit)
        return Count(messages, is_exact, ask.problems)

    def message(self, account: str, key: str) -> ArchivedMessage | None:
        """One message by its key; None if the archive does not have it."""
        ask = self._question(EVERYTHING, [account])
        found = ask.message(key)
        if found is None and ask.problems:
            first = ask.problems[0]
            raise Fatal(f"The message may be in {first.shard}, which cannot be read: {first.problem}")
        return found

    def thread(self, account: str, thread_id: str, *, newest: int | None = None, before: int | None = None) -> Thread:
        """All messages of a thread, whichever shards they are in, spam and trash too.

        Of a very long one, only the newest so many, and only those before a row id.
        """
        ask = self._question(EVERYTHING, [account])
        messages = ask.thread(thread_id, newest, before)
        return Thread(messages, ask.problems)

    def accounts(self) -> list[str]:
        """Whose mail can be searched."""
        return self._archive.accounts()

    def close(self) -> None:
        self._archive.close()

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, query: str, accounts: Sequence[str] | None) -> Question:
        readable = query.encode("utf-8", "replace").decode()  # half a character can be in no mail, nor in a database
        node = parse(readable, int(self._clock.now().timestamp() * 1_000), strict=True)
        return self._question(without_spam_and_trash(node), accounts)

    def _question(self, node: Node, accounts: Sequence[str] | None) -> Question:
        deadline = self._clock.monotonic() + self._patience_s
        return self._archive.ask(node, accounts, lambda: deadline - self._clock.monotonic())


def _sort(sort: Sort | str) -> Sort:
    try:
        return Sort(sort)
    except ValueError:
        raise BadInput("sort", f"{sort!r} is not one of {', '.join(Sort)}") from None
