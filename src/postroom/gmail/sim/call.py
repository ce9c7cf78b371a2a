"""One call of the API with its arguments, read and checked where they are used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qs

from postroom.gmail.quota import Method
from postroom.gmail.sim import base64url
from postroom.gmail.sim.errors import invalid, not_found
from postroom.gmail.sim.mailbox_state import MailboxState
from postroom.gmail.sim.multipart import sections

Json = dict[str, object]
Handler = Callable[[MailboxState, "Call"], Json | None]

_MESSAGE_ID = re.compile(r"[0-9a-f]{1,16}")
_NO_RAW = "'raw' RFC822 payload message string or uploading message via /upload/* URL required"


@dataclass(frozen=True)
class Route:
    """A method of the API: where it is found, who may call it, what it costs, and what it does."""

    name: str
    verb: str
    template: str
    """The path below `users/{userId}/`; `*` stands for an id."""
    scopes: frozenset[str]
    charged_as: Method
    handler: Handler


@dataclass(frozen=True)
class Call:
    route: Route
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
            return resource, base64url.decode(raw)
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
                described = Call(self.route, self.ids, body=parts[0].body)
                return _child(described.json, inside), parts[1].body
            case other:
                raise not_found(f"uploadType {other[:20]!r} is not offered here: use media or multipart")


def _child(resource: Mapping[str, object], key: str | None) -> Mapping[str, object]:
    if key is None:
        return resource
    value = resource.get(key)
    return value if isinstance(value, dict) else {}
