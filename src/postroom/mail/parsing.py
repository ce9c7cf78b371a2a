"""Raw bytes in, a typed message out, never an exception: what cannot be read is reported in `problems`. Also dates
that mail claims and that cannot be true, and when it was received instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property, lru_cache

from postroom.domain.errors import NotFound
from postroom.mail.addresses import Address, parse_addresses
from postroom.mail.charsets import decode_text
from postroom.mail.headers import MAX_BLOCK_BYTES, Headers, split_headers
from postroom.mail.html import html_to_text
from postroom.mail.mime import Attachment, MimePart, attachment_of, decode_beginning, filename_of, parts_of

UNREADABLE = "it could not be read: "
"""How the first problem begins of a message of which little more than its bytes is known."""
MAX_REFERENCES = 100
MAX_PROBLEMS = 50
MAX_TEXT_BYTES = 2 << 20
"""Of all plain text together, and as much of all HTML, as it was sent. What is longer is cut; the raw bytes are not."""
MAX_HTML_CHARS = 1 << 20
"""Of the HTML, that are made into text."""
MAX_ENCLOSED = 20
MAX_ENCLOSED_BYTES = 4 << 20
_ID = re.compile(r"<([^<>\s]{1,996})>")
_BARE_ID = re.compile(r"[^<>\s@,]{1,500}@[^<>\s@,]{1,490}")
_META = re.compile(rb"(?i)<meta\s[^>]{0,200}?charset=[\"']?([a-z0-9_:-]{1,40})")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_USUAL_DATE = re.compile(
    r"(?:[A-Z][a-z]{2}, )?([0-9]{1,2}) (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) ([12][0-9]{3})"
    r" ([0-9]{2}):([0-9]{2}):([0-9]{2}) ([+-][01][0-9][0-5][0-9])(?: \([A-Z]{1,5}\))?"
)
_CALENDAR_TYPES = frozenset({"text/calendar", "application/ics"})


@dataclass(frozen=True, slots=True)
class CalendarPart:
    """An invitation, reply or cancellation as iCalendar text."""

    method: str
    text: str


@dataclass(frozen=True)
class ParsedMail:
    """A message, read. Ids keep their angle brackets; header names are looked up without regard to case."""

    headers: Headers
    message_id: str | None
    in_reply_to: str | None
    references: tuple[str, ...]
    from_: tuple[Address, ...]
    sender: tuple[Address, ...]
    reply_to: tuple[Address, ...]
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    subject: str
    date: datetime | None
    """When the sender says it was sent, in UTC; None where that cannot be read."""
    text: str | None
    html: str | None
    attachments: tuple[Attachment, ...]
    calendars: tuple[CalendarPart, ...]
    enclosed: str = ""
    """What the messages say that are enclosed in it."""
    problems: tuple[str, ...] = field(default=())
    trouble: str | None = None
    """Why it could not be read as a message; what is known of it is then no more than a few headers."""

    @cached_property
    def html_as_text(self) -> str | None:
        """The readable text of the HTML body."""
        return None if self.html is None else html_to_text(self.html, MAX_HTML_CHARS)

    @property
    def best_text(self) -> str:
        """What a person would read: the plain body, or the HTML body's text where there is none."""
        return self.text if self.text and not self.text.isspace() else self.html_as_text or self.text or ""

    def attachment(self, number: int) -> Attachment:
        """By its place among the attachments, from 0."""
        if not 0 <= number < len(self.attachments):
            count = len(self.attachments)
            have = f"its attachments are numbered 0 to {count - 1}" if count else "it has none"
            raise NotFound("attachment", f"the message has no attachment {number}; {have}")
        return self.attachments[number]

    @property
    def list_id(self) -> str | None:
        """The list's identifier without its description, in lowercase."""
        return list_id_of(self.headers)

    @property
    def has_list_unsubscribe(self) -> bool:
        return "List-Unsubscribe" in self.headers

    @property
    def precedence(self) -> str | None:
        return _token(self.headers.get("Precedence"))

    @property
    def auto_submitted(self) -> str | None:
        return _token(self.headers.get("Auto-Submitted"))

    @property
    def authentication_results(self) -> tuple[str, ...]:
        """As they stand, topmost (added last, by the server nearest to us) first."""
        return self.headers.get_all("Authentication-Results")


def parse_mail(raw: bytes) -> ParsedMail:
    """Read a whole message. Anything at all may come in; the caller keeps the raw bytes."""
    problems: list[str] = []
    raw = with_line_ends(raw)
    headers, body_start = split_headers(raw, problems)
    content = _Content()
    for part in parts_of(headers, raw, body_start, problems):
        content.add(part, problems)
    return _assemble(headers, content, problems)


def parse_headers(raw: bytes) -> Headers:
    """Of a message of which nothing else is wanted."""
    return split_headers(with_line_ends(raw[: MAX_BLOCK_BYTES + 4]), [])[0]


def leaves_of(raw: bytes, problems: list[str]) -> list[MimePart]:
    """The parts of a message; `problems` gets what is wrong with how it is put together."""
    raw = with_line_ends(raw)
    headers, body_start = split_headers(raw, [])
    return parts_of(headers, raw, body_start, problems)


def body_text(raw: bytes) -> str:
    """What the body of a message says; its files are not looked at."""
    problems: list[str] = []
    content = _Content()
    for part in leaves_of(raw, problems):
        if is_body(part):
            content.add(part, problems)
    text, html = "\n".join(content.text), "\n".join(content.html)
    return text if text and not text.isspace() else html_to_text(html, MAX_HTML_CHARS)


def with_line_ends(raw: bytes) -> bytes:
    """Old systems ended their lines with a carriage return alone."""
    return raw.replace(b"\r", b"\n") if b"\n" not in raw else raw


@dataclass(slots=True)
class _Content:
    text: list[str] = field(default_factory=list)
    html: list[str] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    calendars: list[CalendarPart] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    """How many bytes of text were read, by type of content."""

    def add(self, part: MimePart, problems: list[str]) -> None:
        if is_body(part):
            (self.text if part.content_type == "text/plain" else self.html).append(self._text_of(part, problems))
            return
        if part.content_type in _CALENDAR_TYPES:
            method = part.parameters.get("method", "").upper()[:20]
            self.calendars.append(CalendarPart(method, self._text_of(part, problems)))
            if not filename_of(part):
                return
        self.attachments.append(attachment_of(part, problems))

    def _text_of(self, part: MimePart, problems: list[str]) -> str:
        read = self.read.get(part.content_type, 0)
        left = MAX_TEXT_BYTES - read
        data, transfer_problem, is_cut = decode_beginning(part, left)
        self.read[part.content_type] = read + min(left, part.end - part.start)
        text, charset_problem = decode_text(data, part.parameters.get("charset") or _meta_charset(part, data))
        if transfer_problem or charset_problem or is_cut:
            cut_problem = "its text is longer than is read; the rest was left out" if is_cut else None
            found = (transfer_problem, charset_problem, cut_problem)
            problems += [f"part {part.number}: {problem}" for problem in found if problem]
        return text.replace("\r\n", "\n")


def is_body(part: MimePart) -> bool:
    """Whether the part is text to be read, and not a file."""
    is_text = part.content_type in ("text/plain", "text/html")
    return is_text and part.disposition != "attachment" and not filename_of(part)


def _enclosed(attachments: list[Attachment]) -> str:
    """What enclosed messages say: of the first ones, up to a size."""
    messages = [each for each in attachments if each.content_type == "message/rfc822"][:MAX_ENCLOSED]
    left = MAX_ENCLOSED_BYTES
    texts: list[str] = []
    for each in messages:
        if each.end - each.start <= left:
            left -= each.end - each.start
            texts.append(body_text(each.content()))
    return "\n".join(filter(None, texts))


def _meta_charset(part: MimePart, data: bytes) -> str | None:
    """Pages sent as mail name their charset only in themselves."""
    found = _META.search(data, 0, 2_000) if part.content_type == "text/html" else None
    return found[1].decode("ascii") if found else None


def _assemble(headers: Headers, content: _Content, problems: list[str]) -> ParsedMail:
    value = headers.first_values.get
    message_id = message_id_in(value("message-id"))
    date = parse_date(value("date"))
    for name, found in (("Message-ID", message_id), ("Date", date)):
        if found is None:
            problems.insert(0, f"{name} cannot be read" if name in headers else f"{name} is missing")
    return ParsedMail(
        headers=headers,
        message_id=message_id,
        in_reply_to=message_id_in(value("in-reply-to")),
        references=message_ids_in(value("references")),
        from_=_people(headers, "from"),
        sender=_people(headers, "sender"),
        reply_to=_people(headers, "reply-to"),
        to=_people(headers, "to"),
        cc=_people(headers, "cc"),
        bcc=_people(headers, "bcc"),
        subject=headers.text("subject") or "",
        date=date,
        text="\n".join(content.text) if content.text else None,
        html="\n".join(content.html) if content.html else None,
        attachments=tuple(content.attachments),
        calendars=tuple(content.calendars),
        enclosed=_enclosed(content.attachments) if content.attachments else "",
        problems=tuple(problems[:MAX_PROBLEMS]),
    )


def _people(headers: Headers, name: str) -> tuple[Address, ...]:
    return parse_addresses(*headers.get_all(name)) if name in headers.first_values else ()


def message_id_in(value: str | None) -> str | None:
    """An id in angle brackets; a bare `left@right` gets the brackets that its sender forgot."""
    if value is None:
        return None
    found = _ID.search(value)
    if found:
        return found[0]
    bare = _BARE_ID.fullmatch(value.strip("<> \t"))
    return f"<{bare[0]}>" if bare else None


def message_ids_in(value: str | None) -> tuple[str, ...]:
    """The ids of a chain; of an endless one the first, which names the conversation, and the latest."""
    if value is None:
        return ()
    ids = [f"<{found}>" for found in _ID.findall(value)]
    return tuple(ids if len(ids) <= MAX_REFERENCES else [ids[0], *ids[1 - MAX_REFERENCES :]])


def list_id_of(headers: Headers) -> str | None:
    """The list's identifier without its description, in lowercase."""
    value = headers.text("List-ID")
    if value is None:
        return None
    found = _ID.search(value)
    return (found[1] if found else value).lower() or None


def parse_date(value: str | None) -> datetime | None:
    """A date as mail writes it, in UTC; None for what is none."""
    if value is None or len(value) > 200:
        return None
    try:
        if (usual := _USUAL_DATE.fullmatch(value)) is not None:
            return _usual_date(usual)
        parsed = parsedate_to_datetime(value)
        # "-0000" means that the sender's zone is unknown but the time is UTC (RFC 5322 3.3).
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, IndexError, AttributeError):
        return None


def _usual_date(found: re.Match[str]) -> datetime:
    """As the standard library reads it, in a fifth of the time."""
    day, month, year, hour, minute, second, zone = found.groups()
    local = datetime(
        int(year), _MONTHS.index(month) // 3 + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC
    )
    return local if zone == "+0000" else local - _ahead(zone)


@lru_cache(256)
def _ahead(zone: str) -> timedelta:
    """How far the clocks of `+0530` are ahead of UTC."""
    ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:]))
    return ahead if zone[0] == "+" else -ahead


def _token(value: str | None) -> str | None:
    """The keyword of a header such as `auto-replied; owner=...`, in lowercase."""
    return None if value is None else value.partition(";")[0].strip().lower()


_FIRST_YEAR = 1971
"""Of the first electronic mail."""
_CLOCKS_DIFFER = timedelta(days=2)


def cannot_be_true(date: datetime, now: datetime) -> bool:
    return date.year < _FIRST_YEAR or date > now + _CLOCKS_DIFFER


def received_at(headers: Headers, now: datetime) -> datetime | None:
    """When the last server says that it received the message: every server adds its header above the others."""
    for value in headers.get_all("Received"):
        date = parse_date(value.rpartition(";")[2].strip())
        if date is not None and not cannot_be_true(date, now):
            return date
    return None


def date_problem(claimed: datetime | None, filed: datetime) -> str | None:
    """The mark of a message whose own date cannot be true, given the date under which it is filed."""
    if claimed is None or not cannot_be_true(claimed, filed):
        return None
    return f"Date says {_day(claimed)}, which cannot be true; filed under {_day(filed)}"


def _day(date: datetime) -> str:
    """By hand: `strftime` does not pad early years everywhere."""
    return f"{date.year:04}-{date.month:02}-{date.day:02}"
