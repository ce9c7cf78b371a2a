"""Text leaves as an expression for the full-text index. What a person typed stands in it only as a quoted string."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from postroom.mail.query.nodes import And, Node, Not, Or, Text, TextField

COLUMNS = {
    TextField.ANY: "{subject sender recipients cc bcc body filenames}",
    TextField.FROM: "sender",
    TextField.TO: "{recipients bcc}",
    TextField.CC: "cc",
    TextField.BCC: "bcc",
    TextField.SUBJECT: "subject",
    TextField.LIST: "list",
    TextField.FILENAME: "filenames",
}
_DEEPEST = 6  # the index's own parser has a small stack


def is_text(node: Node, depth: int = 0) -> bool:
    """Whether the index alone can answer it. It cannot say "all but", only "these but not those"."""
    if depth > _DEEPEST:
        return False
    match node:
        case Text():
            return True
        case Or(parts):
            return bool(parts) and all(is_text(part, depth + 1) for part in parts)
        case And(parts):
            wanted = [part for part in parts if not isinstance(part, Not)]
            unwanted = [part.part for part in parts if isinstance(part, Not)]
            return bool(wanted) and all(is_text(part, depth + 1) for part in wanted + unwanted)
        case _:
            return False


def expression(node: Node) -> str:
    """The index's words for a node that `is_text`."""
    match node:
        case Text(field, words):
            return f"{COLUMNS[field]} : {quoted(words)}"
        case Or(parts):
            return _joined("OR", parts)
        case And(parts):
            return these_but_not(
                [part for part in parts if not isinstance(part, Not)],
                [part.part for part in parts if isinstance(part, Not)],
            )
        case _:
            raise ValueError(f"{node!r} is not a question for the index")


def these_but_not(wanted: Sequence[Node], unwanted: Sequence[Node]) -> str:
    if not unwanted:
        return _joined("AND", wanted)
    return f"({_joined('AND', wanted)} NOT {_joined('OR', unwanted)})"


def any_of(nodes: Sequence[Node]) -> str:
    return _joined("OR", nodes)


def wanted_in_body(node: Node) -> Iterator[str]:
    """The words that a snippet of the body should show."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from wanted_in_body(part)
        case Text(TextField.ANY, words):
            yield words
        case _:
            return


def quoted(words: str) -> str:
    """As one phrase: the index cuts it into tokens as it did with the mail, so `ann@x.org` is three words in a row."""
    return '"' + words.replace("\0", " ").replace('"', '""') + '"'


def _joined(word: str, parts: Sequence[Node]) -> str:
    inner = f" {word} ".join(map(expression, parts))
    return inner if len(parts) == 1 else f"({inner})"
