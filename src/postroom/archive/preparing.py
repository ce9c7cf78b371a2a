"""From raw bytes to everything that an archive stores: parsed, indexed, packed. Pure, and so done outside the writer's
thread.

Never fails because of a message's content: what cannot be read is reported, and its raw bytes are kept all the same.
Large attachments are cut out by position, still encoded, and stored once; joining them gives back the same bytes.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, cast

from postroom.archive.messages import IncomingMail
from postroom.domain.errors import Fatal
from postroom.mail.addresses import Address
from postroom.mail.headers import Headers
from postroom.mail.parsing import ParsedMail, cannot_be_true, received_at
from postroom.mail.query.segmenting import for_index
from postroom.reading.mail import read_headers, read_mail, troubled

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN, ZSTD = "plain", "zstd"
LARGE_BYTES = 64 << 10
_LEVEL = 3
_of_thread = threading.local()
_LARGEST_UNPACKED = 1 << 31  # a damaged header must not make us allocate the machine


def _compressor() -> zstd.ZstdCompressor:
    """One for each thread: creating one costs more than compressing most messages, and they cannot be shared."""
    if not hasattr(_of_thread, "compressor"):
        _of_thread.compressor = zstd.ZstdCompressor(level=_LEVEL)
    return cast(zstd.ZstdCompressor, _of_thread.compressor)


class Packed(NamedTuple):
    codec: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece that was taken out, and where it belongs in what is left."""

    position: int
    content: bytes

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.content).digest()


def pack(data: bytes) -> Packed:
    compressor = _compressor()
    compressor.set_pledged_input_size(len(data))  # small mail then has small tables, which are soon cleared
    compressed = compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    return Packed(ZSTD, compressed) if len(compressed) < len(data) else Packed(PLAIN, data)


def unpack(packed: Packed) -> bytes:
    if packed.codec == PLAIN:
        return packed.data
    if packed.codec != ZSTD:
        raise Fatal(f"stored bytes are packed as {packed.codec!r}, which this Postroom does not know; upgrade it")
    frame = zstd.ZstdDecompressor()
    try:
        data = frame.decompress(packed.data, _LARGEST_UNPACKED)
    except zstd.ZstdError as error:
        raise Fatal(f"stored bytes cannot be unpacked: {error}") from error
    if not frame.eof:
        raise Fatal("stored bytes cannot be unpacked: they end too early, or are too many")
    return data


def unpack_beginning(packed: Packed, size: int) -> bytes:
    """The first bytes, without the work of unpacking the rest; what lies behind them is not checked."""
    if packed.codec != ZSTD:
        return unpack(packed)[:size]
    try:
        return zstd.ZstdDecompressor().decompress(packed.data, size)
    except zstd.ZstdError as error:
        raise Fatal(f"stored bytes cannot be unpacked: {error}") from error


def cut(raw: bytes, parts: Iterable[tuple[int, int]]) -> tuple[bytes, list[Cut]]:
    """Take the large ones of these parts (where they start and end, in order) out of it."""
    rest: list[bytes] = []
    cuts: list[Cut] = []
    done = kept = 0
    for start, end in parts:
        if end - start < LARGE_BYTES or start < done:
            continue
        rest.append(raw[done:start])
        kept += start - done
        cuts.append(Cut(kept, raw[start:end]))
        done = end
    rest.append(raw[done:])
    return b"".join(rest), cuts


def join(rest: bytes, cuts: Sequence[Cut]) -> bytes:
    """Put the pieces back; they come in the order in which they were cut."""
    parts: list[bytes] = []
    done = 0
    for piece in cuts:
        parts += (rest[done : piece.position], piece.content)
        done = piece.position
    parts.append(rest[done:])
    return b"".join(parts)


UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999  # of the year 9999: what is rounded up from there could never be read again
_LONGEST_BODY = 200_000
_LONGEST_FIELD = 20_000
_LONGEST_NAME = 500


class Texts(NamedTuple):
    """The columns of the full-text index."""

    subject: str
    sender: str
    recipients: str
    cc: str
    bcc: str
    body: str
    filenames: str
    list: str


class PreparedMail(NamedTuple):
    """A tuple, because one is made for every message, and again after it came from another process."""

    mail: IncomingMail
    key: str
    message_id: str
    thread_id: str
    date: datetime
    sha256: bytes
    packed: Packed
    cuts: list[Cut]
    sender: str
    subject: str
    texts: Texts
    recipients: list[tuple[str, str, str]]
    attachments: list[tuple[str, str, int, str]]
    problems: tuple[str, ...]
    trouble: str | None = None
    """Why it could not be read; its bytes are kept all the same."""
    indexed: Texts | None = None
    """The texts as an index gets them, where that is not as they are shown."""

    @property
    def date_ms(self) -> int:
        rounded = round(self.date.timestamp() * 1_000)  # cut off, some before 2005 would lie a millisecond early
        return min(rounded, _LAST_MS)

    @property
    def weight(self) -> int:
        """Roughly how many bytes it adds to a transaction."""
        of_pieces = sum(len(piece.content) for piece in self.cuts) if self.cuts else 0
        return len(self.packed.data) + of_pieces + len(self.texts.body)


def prepare(mail: IncomingMail, now: datetime | None = None) -> PreparedMail:
    """Blocks while the message is parsed. `now` is when it is stored, if that is not at this moment."""
    return prepare_and_read(mail, now)[0]


def prepare_and_read(mail: IncomingMail, now: datetime | None = None) -> tuple[PreparedMail, Headers]:
    """The message for the archive, and its headers, parsed once."""
    now = now or datetime.now(UTC)
    try:
        parsed = read_mail(mail.raw)
        prepared = _prepared(mail, parsed, now)
    except Exception as error:  # whatever it holds, its bytes are kept
        parsed = troubled(mail.raw, f"it cannot be indexed ({type(error).__name__})")
        prepared = _prepared(mail, parsed, now)
    # Where a message as a whole cannot be read, its headers alone often can.
    return prepared, parsed.headers if parsed.trouble is None else read_headers(mail.raw)


def _filed(mail: IncomingMail, parsed: ParsedMail, now: datetime) -> datetime:
    """Under which date: a sender's that cannot be true does not count, but when a server received the message does."""
    if mail.received is not None:
        return mail.received
    if parsed.date is None or not cannot_be_true(parsed.date, now):
        return parsed.date or UNDATED
    return received_at(parsed.headers, now) or UNDATED


def _prepared(mail: IncomingMail, parsed: ParsedMail, now: datetime) -> PreparedMail:
    digest = hashlib.sha256(mail.raw)
    rest: bytes = mail.raw
    cuts: list[Cut] = []
    if parsed.attachments:
        rest, cuts = cut(rest, [(attachment.start, attachment.end) for attachment in parsed.attachments])
    message_id = clean_text(parsed.message_id or f"sha256:{digest.hexdigest()}")
    subject = clean_text(parsed.subject)
    texts = _texts(parsed, subject)
    return PreparedMail(
        mail=mail,
        key=mail.gmail_id or f"i{digest.hexdigest()[:15]}",
        message_id=message_id,
        thread_id=mail.thread_id or _thread_of(parsed, message_id),
        date=_filed(mail, parsed, now),
        sha256=digest.digest(),
        packed=pack(rest),
        cuts=cuts,
        sender=clean_text(str(parsed.from_[0]) if parsed.from_ else "")[:_LONGEST_NAME],
        subject=subject[:_LONGEST_NAME],
        texts=texts,
        recipients=_recipients(parsed),
        attachments=[
            (clean_text(a.filename), clean_text(a.content_type), a.size, a.sha256) for a in parsed.attachments
        ],
        problems=tuple(map(clean_text, parsed.problems)) if parsed.problems else (),
        trouble=parsed.trouble,
        indexed=_indexed(texts),
    )


def _thread_of(parsed: ParsedMail, message_id: str) -> str:
    """A thread for mail that came without one: all that refer to the same first message are together."""
    root = next(iter(parsed.references), None) or parsed.in_reply_to or message_id
    return "t" + hashlib.sha256(root.encode("utf-8", "replace")).hexdigest()[:15]


def body_text(parsed: ParsedMail) -> str:
    """The text of a message, as it is searched and as the model reads it."""
    if not parsed.enclosed and not parsed.calendars:
        return clean_text(parsed.best_text[: _LONGEST_BODY + 1])[:_LONGEST_BODY]
    calendars = [calendar.text for calendar in parsed.calendars]
    return clean_text("\n".join([parsed.best_text, *filter(None, [parsed.enclosed]), *calendars]))[:_LONGEST_BODY]


def texts_of(parsed: ParsedMail) -> Texts:
    """What the index holds of a message, without the texts of its attachments."""
    return _texts(parsed, clean_text(parsed.subject))


def _texts(parsed: ParsedMail, subject: str) -> Texts:
    return Texts(
        subject=subject[:_LONGEST_FIELD],
        sender=_names(parsed.from_ + parsed.sender),
        recipients=_names(parsed.to),
        cc=_names(parsed.cc),
        bcc=_names(parsed.bcc),
        body=body_text(parsed),
        filenames=clean_text("\n".join([a.filename for a in parsed.attachments]))[:_LONGEST_FIELD],
        list=clean_text(parsed.list_id or "")[:_LONGEST_NAME],
    )


def _indexed(texts: Texts) -> Texts | None:
    """Here, and not by the writer, of which each shard has one."""
    if all(map(str.isascii, texts)):
        return None
    indexed = Texts._make(map(for_index, texts))
    return None if indexed == texts else indexed


def _names(addresses: tuple[Address, ...]) -> str:
    return clean_text("\n".join(map(str, addresses)))[:_LONGEST_FIELD] if addresses else ""


def _recipients(parsed: ParsedMail) -> list[tuple[str, str, str]]:
    groups = (("from", parsed.from_), ("to", parsed.to), ("cc", parsed.cc), ("bcc", parsed.bcc))
    return [(kind, *one) for kind, addresses in groups if addresses for one in _rows(addresses)]


@lru_cache(4_096)
def _remembered_row(address: Address) -> tuple[str, str]:
    """The compared form and the name, as they are stored."""
    return clean_text(address.canonical), clean_text(address.display_name)[:_LONGEST_NAME]


def _rows(addresses: tuple[Address, ...]) -> Iterable[tuple[str, str]]:
    """Each address once, with the name that it has last."""
    if len(addresses) == 1:
        return [_remembered_row(addresses[0])]
    return dict(map(_remembered_row, addresses)).items()


def clean_text(text: str) -> str:
    """Text that a database accepts: without NULs and lone surrogates."""
    if "\0" in text:
        text = text.replace("\0", " ")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
