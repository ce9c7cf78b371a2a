"""What can be said of a whole query before any mail is looked at."""

from __future__ import annotations

from postroom.mail.query.nodes import And, Anywhere, Labelled, Node, Or, Received

Span = tuple[int | None, int | None]


def span(node: Node) -> Span:
    """A range of dates, in milliseconds, outside of which nothing can match; None is open."""
    if isinstance(node, Received):
        return node.start, node.end
    if isinstance(node, And):
        spans = [span(part) for part in node.parts]
        starts = [start for start, _ in spans if start is not None]
        ends = [end for _, end in spans if end is not None]
        return max(starts, default=None), min(ends, default=None)
    if isinstance(node, Or):
        spans = [span(part) for part in node.parts]
        starts = [start for start, _ in spans if start is not None]
        ends = [end for _, end in spans if end is not None]
        return (
            min(starts) if starts and len(starts) == len(spans) else None,
            max(ends) if ends and len(ends) == len(spans) else None,
        )
    return None, None


def opens_spam_and_trash(node: Node) -> bool:
    """Spam and trash are searched only by a query that names them."""
    if isinstance(node, And | Or):
        return any(opens_spam_and_trash(part) for part in node.parts)
    return isinstance(node, Anywhere) or (isinstance(node, Labelled) and node.label in ("SPAM", "TRASH"))
