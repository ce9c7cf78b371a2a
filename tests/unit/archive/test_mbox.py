"""mbox in and out: any bytes come back, however the file is cut into reads."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroom.archive.importing.mbox import MboxReader, mbox_entry, quote_from_lines, unquote_from_lines
from postroom.archive.importing.state import FoundMessage, RefusedMessage
from postroom.domain.errors import BadInput

DATE = datetime(2026, 1, 5, 12, 30, tzinfo=UTC)
LINE = b"From a@example.org Mon Jan  5 12:30:00 2026"

# Pieces that mbox readers trip over, among arbitrary bytes.
pieces = st.sampled_from(
    [
        b"From ",
        b"\nFrom ",
        b"\n\nFrom ",
        b"\r\n\r\nFrom x 10:00",
        b">From ",
        b"\n>>From ",
        b"\n",
        b"\r\n",
        b"\r",
        b"\0",
        b">",
    ]
)
mails = st.lists(st.one_of(pieces, st.binary(max_size=12)), max_size=12).map(b"".join)


class Drip(io.BytesIO):
    """A stream that gives a few bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._size)


def read(
    data: bytes, *, drip: int = 1 << 20, offset: int = 0, unquote: bool = True, largest: int = 10_000
) -> list[bytes]:
    reader = MboxReader(Drip(data, drip), "test.mbox", unquote=unquote, largest_message=largest)
    return [found.raw for found in reader.messages(offset) if isinstance(found, FoundMessage)]


@pytest.mark.req("SY-16")
@given(st.lists(mails, max_size=5), st.integers(1, 40))
@example([b""], 1)
@example([b"", b"\n", b"\r", b"\r\n", b"a\n\r", b"a\n\r\n", b"\n\n"], 3)
@example([b"no newline", b"From me\n\nFrom you 10:00\n"], 7)
def test_any_bytes_come_back_from_an_mbox(raws: list[bytes], drip: int) -> None:
    assert read(b"".join(mbox_entry(raw, DATE) for raw in raws), drip=drip) == raws


@given(st.lists(mails, min_size=1, max_size=5), st.data())
def test_reading_goes_on_at_every_end_that_was_named(raws: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(mbox_entry(raw, DATE) for raw in raws)
    ends = [found.end for found in MboxReader(io.BytesIO(whole), "test.mbox").messages()]
    done = data.draw(st.integers(0, len(raws) - 1))
    assert ends[-1] == len(whole)
    assert read(whole, offset=ends[done], drip=5) == raws[done + 1 :]


@given(mails)
def test_quoting_is_undone_exactly_and_leaves_no_line_that_looks_like_a_separator(raw: bytes) -> None:
    assert unquote_from_lines(quote_from_lines(raw)) == raw
    assert not any(line.startswith(b"From ") for line in quote_from_lines(raw).split(b"\n"))


@given(st.binary(max_size=300), st.integers(1, 30))
def test_arbitrary_files_are_refused_or_read_and_never_crash(data: bytes, drip: int) -> None:
    for whole in (data, b"From " + data, LINE + b"\n" + data):
        try:
            read(whole, drip=drip, largest=50)
        except BadInput as error:
            assert "not an mbox" in error.message  # noqa: PT017 - most inputs raise nothing


def test_line_ends_of_the_file_are_the_message_s_own() -> None:
    data = LINE + b"\r\nSubject: 1\r\n\r\nHi\r\n\r\n" + LINE + b"\r\nSubject: 2\r\n\r\nHo\r\n"
    assert read(data) == [b"Subject: 1\r\n\r\nHi\r\n", b"Subject: 2\r\n\r\nHo\r\n"]


def test_a_from_line_counts_only_after_a_blank_line() -> None:
    data = LINE + b"\nSubject: x\n\none\nFrom b@example.org Mon Jan  5 12:31:00 2026\ntwo\n"
    assert len(read(data)) == 1


def test_an_unquoted_paragraph_that_begins_with_from_stays_text() -> None:
    data = LINE + b"\nSubject: x\n\nHello.\n\nFrom here on it is text.\n"
    assert read(data) == [b"Subject: x\n\nHello.\n\nFrom here on it is text.\n"]


def test_a_file_whose_from_lines_bear_no_time_is_split_all_the_same() -> None:
    assert read(b"From me\nSubject: 1\n\nFrom you\nSubject: 2\n\n") == [b"Subject: 1\n", b"Subject: 2\n"]


def test_quotes_can_be_kept_as_they_are() -> None:
    data = LINE + b"\nSubject: x\n\n>From old times\n"
    assert read(data) == [b"Subject: x\n\nFrom old times\n"]
    assert read(data, unquote=False) == [b"Subject: x\n\n>From old times\n"]


@pytest.mark.parametrize("drip", [64, 1 << 20])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_message_that_is_too_large_is_refused_alone(position: int, drip: int) -> None:
    small = b"Subject: small\n\nHi\n"
    raws = [small, small]
    raws.insert(position, b"Subject: huge\n\n" + b"0123456789\n" * 3_000)
    reader = MboxReader(Drip(b"".join(mbox_entry(raw, DATE) for raw in raws), drip), "x.mbox", largest_message=5_000)
    found = list(reader.messages())
    assert [item.raw for item in found if isinstance(item, FoundMessage)] == [small, small]
    [refused] = [item for item in found if isinstance(item, RefusedMessage)]
    assert refused.where.startswith("x.mbox, byte ")
    assert "are more than the 5,000" in refused.problem


@pytest.mark.parametrize(("data", "count"), [(b"", 0), (b"\n\n", 0), (b"From ", 1), (b"From x\n", 1), (LINE, 1)])
def test_almost_empty_files_are_read(data: bytes, count: int) -> None:
    assert read(data) == [b""] * count
