"""Random queries: trees as the grammar makes them, and text that is hardly one."""

from __future__ import annotations

from hypothesis import strategies as st

from postroom.mail.query.nodes import (
    EVERYTHING,
    And,
    Anywhere,
    HasAttachment,
    HasUserLabel,
    Labelled,
    MessageId,
    Node,
    Not,
    Or,
    Received,
    Size,
    Text,
    TextField,
)

NOISE = st.lists(
    st.sampled_from(
        [*"(){}-:|\"' ", "OR", "AND", "from:", "in:", "after:", "larger:", "has:", "is:", "2025/01/01", "1y"]
    )
    | st.text(max_size=5),
    max_size=30,
).map("".join)

_SECONDS = st.integers(0, 4_000_000_000).map(lambda second: second * 1_000)
_WORDS = st.text(max_size=12).map(lambda text: text.replace('"', ""))


def trees(leaves: st.SearchStrategy[Node], most: int = 12) -> st.SearchStrategy[Node]:
    """Leaves under AND, OR and NOT, in the shapes that the grammar can produce."""

    def grow(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        parts = st.lists(nodes, min_size=2, max_size=4).map(tuple)
        return parts.map(And) | parts.map(Or) | nodes.map(Not)

    return st.recursive(leaves, grow, max_leaves=most)


def any_leaf() -> st.SearchStrategy[Node]:
    return st.one_of(
        st.builds(Text, st.just(TextField.ANY), _WORDS),
        st.builds(Text, st.sampled_from(TextField).filter(lambda field: field != "any"), _WORDS.filter(bool)),
        _SECONDS.map(lambda start: Received(start=start)),
        _SECONDS.map(lambda end: Received(end=end)),
        st.integers(0, 10**12 - 1).map(lambda size: Size(over=size)),
        st.integers(0, 10**12 - 1).map(lambda size: Size(under=size << 20)),
        st.sampled_from(["SPAM", "UNREAD", "CATEGORY_UPDATES", "my bills", "Kunden/Süd", "x-y"]).map(Labelled),
        _WORDS.map(lambda text: MessageId(text.strip("<>"))),
        st.sampled_from([HasAttachment(), HasUserLabel(), Anywhere(), EVERYTHING]),
    )
