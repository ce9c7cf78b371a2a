"""After a UIDVALIDITY reset places are matched with what they held, and never with what they did not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.mailboxes.imap.places import Place, header_id_for, header_id_of, match_again
from postroom.reading.mail import read_mail


@dataclass(frozen=True)
class Content:
    """A message as a server knows it: few headers, so that different messages share them."""

    number: int
    header: str
    size: int
    received: int

    def place(self, validity: int, uid: int, *, has_email_id: bool, message_id: str | None = None) -> Place:
        email_id = f"M{self.number}" if has_email_id else ""
        flags: frozenset[str] = frozenset()
        return Place("folder", validity, uid, flags, self.received, self.size, message_id, email_id, self.header)

    @property
    def triple(self) -> tuple[str, int, int]:
        return self.header, self.size, self.received


CONTENTS = st.lists(
    st.builds(
        Content,
        st.integers(0, 30),
        st.sampled_from(["", "a", "b", "c", "d", "e", "f"]),
        st.sampled_from([10, 20]),
        st.sampled_from([1, 2]),
    ),
    unique_by=lambda each: each.number,
    max_size=12,
)


@st.composite
def resets(draw: st.DrawFn) -> tuple[list[Content], list[Content]]:
    """What a folder held before and holds after: some of it gone, some of it new, some of it twice, in any order."""
    contents = draw(CONTENTS)
    if not contents:
        return [], []
    some = st.lists(st.sampled_from(contents), max_size=15)
    return draw(some), draw(some)


@pytest.mark.req("IM-3")
@given(resets(), st.booleans(), st.booleans())
def test_only_what_is_certain_or_alone_is_matched(
    folder: tuple[list[Content], list[Content]], had_email_id: bool, has_email_id: bool
) -> None:
    before, now = folder
    old = [
        each.place(1, uid, has_email_id=had_email_id, message_id=f"digest {each.number}")
        for uid, each in enumerate(before, 1)
    ]
    new = [each.place(2, uid, has_email_id=has_email_id) for uid, each in enumerate(now, 1)]
    found = match_again(old, new)
    content = dict(enumerate(now, 1))
    assert len({place.uid for place in found.values()}) == len(found), "no place is found again twice"
    triples = [Counter(each.triple for each in side) for side in folder]
    numbers = [Counter(each.number for each in side) for side in folder]
    for uid, each in content.items():
        is_alone = bool(each.header) and [side[each.triple] for side in triples] == [1, 1]
        if had_email_id and has_email_id:
            is_certain = [side[each.number] for side in numbers] == [1, 1]
            matched = found.get(uid)
            assert matched is None or matched.message_id == f"digest {each.number}", "the server tells them apart"
            assert (uid in found) or not is_certain, "what the server names is not read again"
        else:
            assert (uid in found) == is_alone, "what is alone is matched, and what is ambiguous is read again"


@pytest.mark.req("IM-3")
def test_a_place_whose_bytes_were_never_read_is_not_found_again() -> None:
    content = Content(1, "a", 10, 1)
    [old, new] = [content.place(validity, 1, has_email_id=True) for validity in (1, 2)]
    assert match_again([old], [new]) == {}


@pytest.mark.req("IM-8")
@pytest.mark.parametrize(
    "value",
    [b"<a@x.example>", b" <a@x.example>\t", b"a@x.example", b"<a@x.example> (added)", b"<a@x.example> <b@x.example>"],
)
@pytest.mark.parametrize("name", [b"Message-ID", b"message-id", b"Message-Id"])
def test_what_the_archive_says_of_a_message_id_finds_its_place(name: bytes, value: bytes) -> None:
    """Else a message that is in the mailbox already would be restored once more."""
    raw = b"From: a@x.example\r\n" + name + b": " + value + b"\r\nMessage-ID: <other@x.example>\r\n\r\nHi.\r\n"
    message_id = read_mail(raw).message_id
    assert message_id is not None
    assert header_id_of(raw) == header_id_for(message_id.strip("<>")) != ""
