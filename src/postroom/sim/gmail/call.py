"""One call of the API: its arguments, checked where they are used, and the mailbox that it works on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from urllib.parse import parse_qs

from postroom.domain.clock import Clock
from postroom.mailboxes.gmail.methods import GmailMethod
from postroom.sim.gmail import raw_mail
from postroom.sim.gmail.api_errors import invalid, not_found
from postroom.sim.gmail.mailbox_store import Drafts, MailboxStore
from postroom.sim.gmail.rendering import Renderer, TokenSealer
from postroom.sim.gmail.sources import MailboxSource

_EMPTY_LINE = re.compile(rb"\n\r?\n")
_BOUNDARY = re.compile(r'boundary\s*=\s*(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MultipartSection:
    headers: dict[str, str]
    body: bytes


def sections(body: bytes, content_type: str) -> list[MultipartSection]:
    found = _BOUNDARY.search(content_type)
    if not found:
        raise invalid("Failed to parse batch request, error: no boundary in the content type.")
    delimiter = b"\n--" + (found[1] or found[2]).encode("latin-1", "replace")
    pieces = (b"\n" + body).split(delimiter)
    if len(pieces) < 2:
        raise invalid("Failed to parse batch request, error: 0 items.")
    return [_piece(piece) for piece in takewhile(lambda piece: not piece.startswith(b"--"), pieces[1:])]


def section(text: bytes) -> MultipartSection:
    """Headers, an empty line, a body; the same shape at every level. The body is kept to the byte."""
    found = _EMPTY_LINE.search(b"\n" + text)
    head, body = (text[: found.start()], text[found.end() - 1 :]) if found else (text, b"")
    pairs = (line.partition(":") for line in head.decode("latin-1").splitlines() if ":" in line)
    return MultipartSection({name.strip().lower(): value.strip() for name, _, value in pairs}, body)


def _piece(piece: bytes) -> MultipartSection:
    """What stands between two delimiters, without the line ends that belong to them."""
    _, _, text = piece.partition(b"\n")
    return section(text.removesuffix(b"\r"))


@dataclass
class SimWatch:
    topic: str
    label_ids: list[str]
    expires_ms: int


@dataclass
class MailboxState:
    source: MailboxSource
    clock: Clock
    store: MailboxStore = field(init=False)
    drafts: Drafts = field(init=False)
    sealer: TokenSealer = field(init=False)
    renderer: Renderer = field(init=False)
    watch: SimWatch | None = None

    def __post_init__(self) -> None:
        self.store = MailboxStore(self.source, self.clock)
        self.drafts = Drafts(self.store)
        self.sealer = TokenSealer(self.source.email)
        self.renderer = Renderer(self.store, self.sealer)


Json = dict[str, object]
Handler = Callable[[MailboxState, "ApiCall"], Json | None]

_MESSAGE_ID = re.compile(r"[0-9a-f]{1,16}")
_NO_RAW = "'raw' RFC822 payload message string or uploading message via /upload/* URL required"


@dataclass(frozen=True)
class ApiRoute:
    """A method of the API: where it is found, who may call it, what it costs, and what it does."""

    name: str
    verb: str
    template: str
    """The path below `users/{userId}/`; `*` stands for an id."""
    scopes: frozenset[str]
    charged_as: GmailMethod
    handler: Handler


@dataclass(frozen=True)
class ApiCall:
    route: ApiRoute
    ids: tuple[str, ...]
    """What stood for the `*` of the template."""
    query_string: str = ""
    body: bytes = b""
    content_type: str = ""
    scopes: frozenset[str] = frozenset()
    is_upload: bool = False

    @property
    def id(self) -> str:
        return self.ids[-1]

    @property
    def message_id(self) -> str:
        """The first id of the path, which must look like one of a message or thread."""
        if not _MESSAGE_ID.fullmatch(self.ids[0]):
            raise invalid("Invalid id value")
        return self.ids[0]

    @cached_property
    def _query(self) -> dict[str, list[str]]:
        return parse_qs(self.query_string, keep_blank_values=True) if self.query_string else {}

    def text(self, name: str, default: str = "") -> str:
        return self._query.get(name, (default,))[-1]

    def many(self, name: str) -> list[str]:
        return self._query.get(name, [])

    def flag(self, name: str) -> bool:
        return self.text(name).lower() == "true"

    def max_results(self, default: int = 100, most: int = 500) -> int:
        """Larger wishes are cut to the limit; what is no number of results is refused."""
        text = self.text("maxResults", str(default))
        if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) < 1:
            raise invalid(f"Invalid value for maxResults: {text[:40]}")
        return min(int(text), most)

    @cached_property
    def json(self) -> Mapping[str, object]:
        try:
            value = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            raise invalid("Invalid JSON payload received.") from None
        if not isinstance(value, dict):
            raise invalid("Invalid JSON payload received. Root element must be a message.")
        return value

    def names(self, key: str, most: int) -> list[str]:
        """A list of strings in the body."""
        value = self.json.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise invalid(f"Invalid value for {key}: a list of strings is needed")
        if len(value) > most:
            raise invalid(f"Too many values for {key}: at most {most} are allowed")
        return value

    def mail(self, *, inside: str | None = None) -> tuple[Mapping[str, object], bytes]:
        """The resource that the caller gave and the bytes of its message, from JSON or from an upload."""
        if self.is_upload:
            return self._uploaded(inside)
        resource = _child(self.json, inside)
        raw = resource.get("raw")
        if not isinstance(raw, str) or not raw:
            raise invalid(_NO_RAW)
        try:
            return resource, raw_mail.decode_base64url(raw)
        except ValueError:
            raise invalid("Invalid value at 'message.raw': Base64 decoding failed") from None

    def _uploaded(self, inside: str | None) -> tuple[Mapping[str, object], bytes]:
        match self.text("uploadType"):
            case "media":
                return {}, self.body
            case "multipart":
                parts = sections(self.body, self.content_type)
                if len(parts) != 2:
                    raise invalid("A multipart upload has two parts: the resource and the message")
                described = ApiCall(self.route, self.ids, body=parts[0].body)
                return _child(described.json, inside), parts[1].body
            case other:
                raise not_found(f"uploadType {other[:20]!r} is not offered here: use media or multipart")


def _child(resource: Mapping[str, object], key: str | None) -> Mapping[str, object]:
    if key is None:
        return resource
    value = resource.get(key)
    return value if isinstance(value, dict) else {}
