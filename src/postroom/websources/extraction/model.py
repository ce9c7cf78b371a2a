"""What goes to the reader of pages, and what comes back; both as bytes on a pipe."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import date
from typing import Protocol

LONGEST_TEXT = 2_000_000
"""Characters that are kept of a document."""


@dataclass(frozen=True, slots=True)
class Document:
    body: bytes
    content_type: str
    charset: str | None
    url: str

    def header(self) -> bytes:
        return json.dumps({"content_type": self.content_type, "charset": self.charset, "url": self.url}).encode()

    @classmethod
    def read(cls, header: bytes, body: bytes) -> Document:
        fields = json.loads(header)
        return cls(body, fields["content_type"], fields["charset"], fields["url"])


@dataclass(frozen=True, slots=True)
class Extracted:
    extractor: str
    title: str | None = None
    text: str = ""
    published_on: date | None = None
    language: str | None = None
    problem: str | None = None
    """Why there is no text, or not all of it; for people."""

    def encoded(self) -> bytes:
        fields = asdict(self)
        fields["published_on"] = None if self.published_on is None else self.published_on.isoformat()
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> Extracted:
        fields = json.loads(data)
        published = fields.pop("published_on")
        return cls(**fields, published_on=None if published is None else date.fromisoformat(published))


class Reader(Protocol):
    async def extract(self, document: Document) -> Extracted:
        """What the document says; every document gets an answer, if only a note on why it cannot be read."""
