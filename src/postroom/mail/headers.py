"""The header block of a message: ordered pairs with case-insensitive look-up, parameters (RFC 2231), the triage
headers, and subjects without the marks of answers. Pure.

Values are kept as written, unfolded; encoded words are decoded by the code that knows the field, because decoding them
before splitting addresses would let a display name smuggle in a second address. Triage headers are what the sender
wrote, within bounds; headers that servers add on the way are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import NamedTuple

from postroom.mail.addresses import Address, parse_addresses
from postroom.mail.charsets import decode_text, decode_words, guess_text

MAX_BLOCK_BYTES = 1 << 20
MAX_HEADERS = 2_000
MAX_VALUE_CHARS = 64 << 10
MAX_REPETITIONS = 100
MAX_PARAMETER_CHARS = 8 << 10
MAX_PARAMETERS = 200
_REMEMBERED_CHARS = 200

_FIELD = re.compile(r"^([!-9;-~]{1,200})[ \t]*+:(.*+(?:\n[ \t].*+)*+)\n?", re.MULTILINE)
_PLAIN_FIELD = re.compile(r"^([!-9;-~]{1,200}+)[ \t]*+:[ \t]*+(.*+(?:\n[ \t].*+)*+)", re.MULTILINE)
_PARAMETER = re.compile(r';\s*([^\s=;"]{1,100})\s*=\s*("(?:[^"\\]|\\.)*"|[^;]*)', re.DOTALL)
_ONE_PARAMETER = re.compile(r'([^\s;"]{1,100}+);[ \t]*+([A-Za-z-]{1,40})=(?:"([^"\\]{0,1000}+)"|([^\s;"]{1,200}+))')
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_CUT_CHARACTER = re.compile(r"[\xc0-\xff][\x80-\xbf]{0,2}\Z")
_ESCAPE = re.compile(r'\\(["\\])')
_SECTION = re.compile(r"(.+?)(?:\*([0-9]{1,3}))?(\*)?")
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")


@dataclass(frozen=True)
class Headers:
    """Headers in the order in which they stand. A header that is missing matches nothing."""

    pairs: tuple[tuple[str, str], ...] = ()

    @cached_property
    def first_values(self) -> Mapping[str, str]:
        """The first value of each, by lowercase name, in the order in which they first stand."""
        found = {name.lower(): value for name, value in self.pairs}
        if len(found) < len(self.pairs):
            for name, value in reversed(self.pairs):
                found[name.lower()] = value
        return found

    @cached_property
    def _all(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, value in self.pairs:
            found.setdefault(name.lower(), []).append(value)
        return found

    @property
    def names(self) -> KeysView[str]:
        """In lowercase, each once, in the order in which they first stand."""
        return self.first_values.keys()

    def get(self, name: str) -> str | None:
        """The first value of this header, or None."""
        return self.first_values.get(name.lower())

    def get_all(self, name: str) -> tuple[str, ...]:
        """All its values, topmost first; at most `MAX_REPETITIONS` of them."""
        key = name.lower()
        first = self.first_values.get(key)
        if first is None:
            return ()
        if len(self.first_values) == len(self.pairs):
            return (first,)
        return tuple(self._all[key][:MAX_REPETITIONS])

    def text(self, name: str) -> str | None:
        """The first value as one line for people: encoded words read, control characters and extra space gone."""
        value = self.get(name)
        return None if value is None else one_line(decode_words(value))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self.first_values

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


_START = re.compile(rb"(?:\xef\xbb\xbf|\xfe\xff|\xff\xfe)?+(?:[ \t\r\n]++|>*+From [^\r\n]*+)*+")
_BLOCK = re.compile(rb"(?:[^\r\n]++(?:\r\n|\r|\n)?)++")
_OF_MAIL = re.compile(
    rb"^(?:from|to|cc|bcc|date|subject|received|message-id|reply-to|sender|return-path|delivered-to|envelope-to"
    rb"|in-reply-to|references|mime-version|content-(?:type|transfer-encoding|disposition)|dkim-signature|arc-[a-z-]+"
    rb"|authentication-results|received-spf|list-[a-z-]+|resent-[a-z-]+|x-(?:mailer|original-to|received|sender|uidl"
    rb"|gm-[a-z-]+|gmail-[a-z-]+|mozilla-[a-z0-9-]+|spam-[a-z-]+)|apparently-to|newsgroups"
    rb"|thread-(?:index|topic))[ \t]*:",
    re.IGNORECASE | re.MULTILINE,
)


def has_mail_headers(head: bytes) -> bool:
    """Whether a file that begins so can be a message: its first lines have a header that mail has.

    A byte-order mark, blank lines and `From ` lines before them do not matter, nor do other lines between them.
    """
    plain = head.replace(b"\0", b"")  # UTF-16, as some editors save it
    start = _START.match(plain)
    block = _BLOCK.match(plain, start.end() if start else 0)
    return block is not None and _OF_MAIL.search(block[0].replace(b"\r", b"\n")) is not None


def one_line(text: str) -> str:
    """Without control characters and extra space."""
    return " ".join((text if text.isprintable() else _CONTROL.sub(" ", text)).split())


def split_headers(data: bytes, problems: list[str]) -> tuple[Headers, int]:
    """The headers at the top of the data, and where the body starts."""
    return read_block(data, problems, 0, len(data), MAX_BLOCK_BYTES)[:2]


def read_block(data: bytes, problems: list[str], start: int, end: int, most: int) -> tuple[Headers, int, int]:
    """The headers at `start`, where the body starts, and how many bytes were looked at, which are `most` or fewer."""
    limit = min(end, start + most)
    block_end, body = blank_line(data, start, limit, end)
    if block_end == limit < end:
        _once(problems, "the headers do not end within 1 MiB; the rest was not read")
    pairs, read = _pairs(data[start:block_end], problems)
    if start + read < block_end:
        _once(problems, "no blank line between headers and body")
        body = start + read
    return Headers(tuple(pairs)), body, block_end - start


def blank_line(data: bytes, start: int, limit: int, end: int) -> tuple[int, int]:
    """Where the blank line after the headers starts and ends; without one, all of the data are headers."""
    if data.startswith((b"\n", b"\r\n"), start, end):
        return start, data.index(b"\n", start) + 1
    with_return = data.find(b"\n\r\n", start, limit)
    without = data.find(b"\n\n", start, with_return if with_return >= 0 else limit)
    if without >= 0:
        return without, without + 2
    if with_return >= 0:
        return with_return, with_return + 3
    return limit, end


def plain_headers(block: bytes) -> Headers | None:
    """The headers of a block in which nothing is wrong; None for any other, which `read_block` reads."""
    pairs = None if block.startswith((b"From ", b">From ")) else _plain_pairs(block.decode("latin-1"))
    return None if pairs is None else Headers(tuple(pairs))


def _pairs(block: bytes, problems: list[str]) -> tuple[list[tuple[str, str]], int]:
    """Name and value of each field, and where the last one ends (text after it belongs to the body)."""
    start = block.find(b"\n") + 1 if block.startswith((b"From ", b">From ")) else 0
    # One byte stays one character, so that a position in the text is a position in the data.
    text = block.decode("latin-1")
    if (plain := _plain_pairs(text[start:] if start else text)) is not None:
        return plain, len(block)
    pairs: list[tuple[str, str]] = []
    position = start
    for match in _FIELD.finditer(text, start):
        if match.start() != position:
            _once(problems, "a header line is malformed and was skipped")
        position = match.end()
        if len(pairs) == MAX_HEADERS:
            _once(problems, f"more than {MAX_HEADERS} headers; the rest was not read")
            position = len(block)
            break
        pairs.append((match[1], _value(match[2], problems)))
    if not pairs and start == 0:
        return [], 0
    return pairs, len(block) if not text[position:].strip() else position


def _plain_pairs(text: str) -> list[tuple[str, str]] | None:
    """The fields of a block in which nothing is wrong, as nearly all are; None for any other."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    if len(text) > MAX_VALUE_CHARS or not text.isascii() or "\r" in text or "\0" in text or text.endswith((" ", "\t")):
        return None
    pairs = _PLAIN_FIELD.findall(text)
    folds = text.count("\n ") + text.count("\n\t")
    if len(pairs) != text.count("\n") + 1 - folds or len(pairs) > MAX_HEADERS:
        return None
    if folds:
        return [(name, value.replace("\n", "").strip(" \t")) for name, value in pairs]
    return [(name, value.strip(" \t")) for name, value in pairs] if " \n" in text or "\t\n" in text else pairs


def _value(raw: str, problems: list[str]) -> str:
    if len(raw) <= MAX_VALUE_CHARS and raw.isascii() and raw.isprintable():
        return raw.strip(" ")  # as nearly all are
    if len(raw) > MAX_VALUE_CHARS:
        _once(problems, "a header is longer than 64 KiB and was cut")
        raw = _CUT_CHARACTER.sub("", raw[:MAX_VALUE_CHARS])  # else one half character makes all of it not UTF-8
    if "\n" in raw or "\r" in raw:
        raw = raw.replace("\n", "").replace("\r", "")
    if not raw.isascii():
        _once(problems, "8-bit characters in a header")
        raw = guess_text(raw.encode("latin-1"))
    if "\0" in raw:
        _once(problems, "NUL characters in a header were left out")
        raw = raw.replace("\0", "")
    return raw.strip(" \t")


def _once(problems: list[str], problem: str) -> None:
    if problem not in problems:
        problems.append(problem)


def parse_parameters(value: str) -> tuple[str, Mapping[str, str]]:
    """`text/plain; charset=utf-8` as its lowercase value and its parameters, RFC 2231 pieces put together."""
    if ";" not in value:
        return value.strip().lower(), {}
    return _parameters(value) if len(value) > _REMEMBERED_CHARS else _remembered_parameters(value)


@lru_cache(1_024)
def _remembered_parameters(value: str) -> tuple[str, Mapping[str, str]]:
    """Most parts say one of a few things about themselves."""
    return _parameters(value)


def _parameters(value: str) -> tuple[str, dict[str, str]]:
    if (usual := _ONE_PARAMETER.fullmatch(value)) is not None:
        main, name, quoted, bare = usual.groups()
        return main.lower(), {name.lower(): bare if quoted is None else quoted}
    value = value[:MAX_PARAMETER_CHARS]
    main = value.partition(";")[0].strip().lower()
    plain: dict[str, str] = {}
    pieces: dict[str, dict[int, tuple[bool, str]]] = {}
    for match in islice(_PARAMETER.finditer(value), MAX_PARAMETERS):
        name, content = match[1].lower(), _unquoted(match[2])
        section = _SECTION.fullmatch(name) if "*" in name else None
        if section is None:
            plain.setdefault(name, content)
        else:
            pieces.setdefault(section[1], {}).setdefault(int(section[2] or 0), (bool(section[3]), content))
    return main, plain | {name: _assembled(parts) for name, parts in pieces.items()}


def _unquoted(content: str) -> str:
    content = content.strip()
    if content.startswith('"'):
        return _ESCAPE.sub(r"\1", content[1:-1] if len(content) > 1 and content.endswith('"') else content[1:])
    return content


def _assembled(parts: dict[int, tuple[bool, str]]) -> str:
    """The pieces in order; the first encoded one names the charset (`utf-8'en'...`)."""
    charset: str | None = None
    data = b""
    for number, (_, (encoded, content)) in enumerate(sorted(parts.items())):
        raw = content.encode("utf-8", "replace")
        if encoded and number == 0 and content.count("'") >= 2:
            charset, _, rest = content.split("'", 2)
            raw = rest.encode("utf-8", "replace")
        data += _PERCENT.sub(lambda m: bytes([int(m[1], 16)]), raw) if encoded else raw
    return decode_text(data, charset or None)[0]


MOST_BYTES = 16_000
"""Of all names and values together."""
LONGEST_HEADER = 2_000
MOST_HEADERS = 100
_VALUES_READ = 20

_FIRST = (
    "from",
    "to",
    "cc",
    "reply-to",
    "message-id",
    "in-reply-to",
    "list-id",
    "list-unsubscribe",
    "precedence",
    "auto-submitted",
    "authentication-results",
)
"""What triage cannot do without: no flood of other headers pushes these out."""
_OF_ADDRESSES = frozenset({"from", "to", "cc", "reply-to", "sender", "bcc", "resent-from", "resent-to"})
_TOPMOST_ONLY = frozenset({"authentication-results"})
"""Our own server writes its verdict on top; one further down came with the mail and may be forged."""
_NOISE = frozenset(
    {
        "received",
        "received-spf",
        "return-path",
        "delivered-to",
        "x-received",
        "x-original-authentication-results",
        "dkim-signature",
        "domainkey-signature",
        "x-google-dkim-signature",
        "x-gm-message-state",
        "x-google-smtp-source",
        "x-gm-gg",
        "content-transfer-encoding",
        "mime-version",
        "references",
        "autocrypt",
        "face",
        "x-face",
    }
)
_NOT_LATER = _NOISE.union(_FIRST)
_NOISY_STARTS = ("arc-", "x-ms-exchange-", "x-microsoft-", "x-forefront-", "x-proofpoint-")


def triage_headers(headers: Headers) -> dict[str, str]:
    """By lowercase name, as text for people; of a header that stands several times, its values with commas between."""
    kept: dict[str, str] = {}
    left = MOST_BYTES
    for name in _in_order(headers):
        text = _text(headers, name)
        left -= len(name) + (len(text) if text.isascii() else len(text.encode("utf-8", "replace")))
        if left < 0 or len(kept) == MOST_HEADERS:
            break
        kept[name] = text
    return kept


def _in_order(headers: Headers) -> Iterator[str]:
    names = headers.names
    yield from (name for name in _FIRST if name in names)
    yield from (name for name in names if name not in _NOT_LATER and not name.startswith(_NOISY_STARTS))


def _text(headers: Headers, name: str) -> str:
    values = headers.get_all(name)
    if name in _OF_ADDRESSES:
        is_short = sum(map(len, values)) <= LONGEST_HEADER
        if text := _short_addresses_text(values) if is_short else _addresses_text(parse_addresses(*values)):
            return text
    values = values[: 1 if name in _TOPMOST_ONLY else _VALUES_READ]
    if len(values) == 1:
        return _line(values[0])
    return ", ".join(filter(None, map(_line, values)))[:LONGEST_HEADER]


def _line(value: str) -> str:
    """A value as text for people, in one line."""
    if len(value) <= LONGEST_HEADER and "=?" not in value and "  " not in value and value.isprintable():
        return value.strip(" ")  # as nearly all are
    return one_line(decode_words(value[: 4 * LONGEST_HEADER]))[:LONGEST_HEADER]


@lru_cache(4_096)
def _short_addresses_text(values: tuple[str, ...]) -> str:
    """Most mail comes from few people, and goes to one."""
    return _addresses_text(parse_addresses(*values))


def _addresses_text(addresses: tuple[Address, ...]) -> str:
    """Whole addresses, each once, as many as there is room for, so that reading them again finds the same ones. Where
    there is too little, one of each domain comes first: a crowd of senders must not hide the one who is not of them."""
    once = list({address.canonical: address for address in reversed(addresses)}.values())[::-1]
    whole = ", ".join(map(_written, once))
    if len(whole) <= LONGEST_HEADER:
        return whole
    of_domain = {address.domain: address for address in reversed(once)}
    first = [address for address in once if of_domain[address.domain] is address]
    text = ""
    for address in [*first, *(address for address in once if of_domain[address.domain] is not address)]:
        longer = f"{text}, {address.address}" if text else address.address
        if len(longer) > LONGEST_HEADER:
            break
        text = longer
    return text


def _written(address: Address) -> str:
    """A name is quoted: one that was encoded may hold commas and addresses of its own."""
    name = address.display_name.replace("\\", "").replace('"', "")
    return f'"{name}" <{address.address}>' if name else address.address


_REPLY_WORDS = (
    "re", "aw", "antw", "antwort",  # English and many others, German, Dutch
    "sv", "vs", "svar",  # Swedish, Danish, Norwegian; Finnish
    "r", "rif", "res", "rép",  # Italian, Portuguese, French
    "odp", "odg", "ats", "atb", "vá", "ynt", "bls",  # Polish, Croatian, Lithuanian, Welsh, Hungarian, Turkish, Malay
    "на", "отв", "ответ", "отг", "відп", "απ",  # Russian, Bulgarian, Ukrainian, Greek
    "回复", "回覆", "答复", "返信", "답장", "회신",  # Chinese, Japanese, Korean
    "השב", "תגובה", "رد", "پاسخ",  # Hebrew, Arabic, Persian
)  # fmt: skip
_MARK = rf"\s*(?:{'|'.join(_REPLY_WORDS)})\s*(?:\[\d{{1,4}}\]|\(\d{{1,4}}\)|\^\d{{1,4}})?\s*[:：]"  # noqa: RUF001
REPLY_MARK = re.compile(_MARK, re.IGNORECASE)
"""At the beginning of an answer's subject."""
_TAG = re.compile(r"\s*\[[^\[\]]{1,60}\]")
_SPACE = re.compile(r"\s+")
_LONGEST = 500
_MOST_MARKS = 20


class BareSubject(NamedTuple):
    text: str
    """Without marks of answers and tags of mailing lists, in its compared form."""
    is_reply: bool


def bare_subject(subject: str) -> BareSubject:
    """`AW: [choir] Re[2]: Rehearsal` is an answer about `rehearsal`; a mark of forwarding stays."""
    rest, is_reply = subject[:_LONGEST], False
    for _ in range(_MOST_MARKS):
        if mark := REPLY_MARK.match(rest):
            is_reply = True
        elif not (mark := _TAG.match(rest)):
            break
        rest = rest[mark.end() :]
    return BareSubject(_SPACE.sub(" ", rest).strip().casefold(), is_reply)
