"""Search over the archive's shards: newest first with early stop, or ranked; counts, snippets, threads.

A query becomes SQL over one shard (`folding`, `alternatives`, `selecting`), and `engine` asks the shards in turn.
"""

from postroom.archive.search.answers import (
    ArchivedThread,
    SearchCount,
    SearchHit,
    SearchPage,
    ShardProblem,
    Snippet,
    Sort,
)
from postroom.archive.search.engine import Search

__all__ = ["ArchivedThread", "Search", "SearchCount", "SearchHit", "SearchPage", "ShardProblem", "Snippet", "Sort"]
