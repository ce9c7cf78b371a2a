"""Words of a question that are worth searching for, and a query that asks for any of its words instead of all. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from postroom.mail.query.nodes import And, Node, Not, Or, Similar, Text, TextField

_SHORTEST_STEM = 4
_ENDINGS = ("ings", "ing", "ed", "es", "s")
_MOST_WORDS = 16
_UNSEARCHED = """
    a about above after again ago all also am an and any anyone anything are as ask asked at be because been before
    being between but by can could did do does doing done down during each e-mail e-mails email emails ever every few
    find first for from get gets getting give got had has have having he her here him his how i if in inbox into is it
    its just know last lately latest letter letters mail mailbox mails many may me message messages might mine more
    most much must my newest no not now of off often on once only or other our out over own please receive received
    recent recently same say says send sent shall she should show since so some someone something still such
    tell than that the their them then there these they this those to too under until up us very want was we were
    what when where whether which while who whom whose why will with would write wrote yes yet you your
"""
STOP_WORDS = frozenset(_UNSEARCHED.split())
"""Words that ask, point or join, and words that only say that it is about mail."""


def beginning(word: str) -> str:
    """`visit*` for `visited`; names, numbers and short words as they are."""
    if not word.isalpha() or not word.islower():
        return word
    stem = next((word.removesuffix(end) for end in _ENDINGS if word.endswith(end)), word)
    stem = stem if len(stem) >= _SHORTEST_STEM else word
    return f"{stem}*" if len(stem) >= _SHORTEST_STEM else word


def required_terms(node: Node) -> tuple[Node, ...]:
    """What must all be true."""
    return tuple(inner for part in node.parts for inner in required_terms(part)) if isinstance(node, And) else (node,)


def _is_word(node: Node) -> bool:
    """A single word that may stand anywhere in a message."""
    return isinstance(node, Text) and node.field is TextField.ANY and len(node.words.split()) == 1


def plain_words(node: Node) -> list[str]:
    """The single words that a query asks for beside everything else, as typed."""
    return [term.words for term in required_terms(node) if isinstance(term, Text) and _is_word(term)]


def without_words(node: Node) -> Node:
    """What else it asks for."""
    return And(tuple(term for term in required_terms(node) if not _is_word(term)))


def any_word(node: Node) -> Node:
    """The same query, content with any of its single words, or a word that begins so; those that say nothing are left
    out. Without a word that says something, the query as it is."""
    spelled = dict.fromkeys(_bare(word) for word in plain_words(node))
    telling = [word for word in spelled if word and word.casefold() not in STOP_WORDS][:_MOST_WORDS]
    if not telling:
        return node
    wanted = tuple(Text(TextField.ANY, beginning(word)) for word in telling)
    return And((Or(wanted), *required_terms(without_words(node))))


def _bare(word: str) -> str:
    """Without the marks around it, as in `(Smith?)`."""
    kept = [at for at, char in enumerate(word) if char.isalnum()]
    return word[kept[0] : kept[-1] + 1] + ("*" if word.endswith("*") else "") if kept else ""


def similar_to(node: Node) -> tuple[Similar | None, Node]:
    """The `similar:` of a query and the rest of it. Raises ValueError where it is not one term beside all others."""
    terms = required_terms(node)
    found = [term for term in terms if isinstance(term, Similar)]
    rest = And(tuple(term for term in terms if not isinstance(term, Similar)))
    if len(found) > 1 or any(True for _ in _all_similar(rest)):
        raise ValueError("similar: may stand in a query once, beside its other terms, and not after - or within OR")
    return (found[0] if found else None), rest


def _all_similar(node: Node) -> Iterator[Similar]:
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _all_similar(part)
        case Not(part):
            yield from _all_similar(part)
        case Similar():
            yield node
