"""Search over the archive's shards: newest first with early stop, or ranked; counts, snippets, threads.

A query becomes SQL over one shard (`folding`, `alternatives`, `selecting`), and `engine` asks the shards in turn.
"""

from postroom.archive.search.engine import Search
from postroom.archive.search.model import Count, Hit, Page, ShardProblem, Snippet, Sort, Thread

__all__ = ["Count", "Hit", "Page", "Search", "ShardProblem", "Snippet", "Sort", "Thread"]
