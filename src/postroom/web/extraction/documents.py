"""What goes to the reader of documents, and what comes back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Protocol

LONGEST_TEXT = 2_000_000
"""Characters that are kept of a document."""


@dataclass(frozen=True, slots=True)
class WebDocument:
    body: bytes
    content_type: str
    charset: str | None
    url: str


@dataclass(frozen=True, slots=True)
class Extracted:
    extractor: str
    title: str | None = None
    text: str = ""
    published_on: date | None = None
    language: str | None = None
    problem: str | None = None
    """Why there is no text, or not all of it; for people."""

    def encoded(self) -> tuple[dict[str, Any], bytes]:
        fields = asdict(self)
        fields["published_on"] = None if self.published_on is None else self.published_on.isoformat()
        return fields, fields.pop("text").encode("utf-8", "surrogatepass")

    @classmethod
    def decode(cls, fields: dict[str, Any], text: bytes) -> Extracted:
        published = fields.pop("published_on")
        return cls(
            **fields,
            text=text.decode("utf-8", "surrogatepass"),
            published_on=None if published is None else date.fromisoformat(published),
        )


class DocumentReader(Protocol):
    async def extract(self, document: WebDocument) -> Extracted:
        """What the document says; every document gets an answer, if only a note on why it cannot be read."""
