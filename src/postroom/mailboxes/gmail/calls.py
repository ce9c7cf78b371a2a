"""Every Gmail API call that Postroom makes, as a value: method, path, body and cost in units. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from postroom.domain.errors import BadInput
from postroom.mail.query import with_whole_dates
from postroom.mailboxes.gmail.error_mapping import CallDescription
from postroom.mailboxes.gmail.methods import SHORTEST_EPOCH, GmailMethod, QuotaProfile
from postroom.mailboxes.gmail.resources import encoded
from postroom.mailboxes.gmail.transport import GmailCall, json_body
from postroom.mailboxes.protocol import Span

_USER = "/gmail/v1/users/me"
_UPLOAD = "/upload"
_LARGE = 4 << 20
"""Larger messages go through the upload address: JSON makes them a third larger, and Gmail limits its size."""
_RELATED = "postroom_upload"


@dataclass(frozen=True)
class Calls:
    profile: QuotaProfile | None

    def read(self, method: GmailMethod, path: str, query: Sequence[tuple[str, str]] = (), what: str = "") -> GmailCall:
        return GmailCall(CallDescription(method, what), "GET", f"{_USER}/{path}", self._cost(method), tuple(query))

    def change(
        self,
        method: GmailMethod,
        path: str,
        body: dict[str, object] | None = None,
        what: str = "",
        verb: str = "POST",
        query: Sequence[tuple[str, str]] = (),
    ) -> GmailCall:
        content = json_body(body) if body is not None else (b"" if verb == "POST" else None)
        asked = CallDescription(method, what, changes=True)
        return GmailCall(asked, verb, f"{_USER}/{path}", self._cost(method), tuple(query), content)

    def bring(
        self,
        method: GmailMethod,
        path: str,
        raw: bytes,
        fields: dict[str, object],
        query: Sequence[tuple[str, str]] = (),
    ) -> GmailCall:
        """A call that carries a whole message; drafts have it one level deeper."""
        in_draft = method in (GmailMethod.DRAFTS_CREATE, GmailMethod.DRAFTS_UPDATE)
        if len(raw) <= _LARGE:
            resource = fields | {"raw": encoded(raw)}
            return self.change(method, path, {"message": resource} if in_draft else resource, query=query)
        metadata = json_body({"message": fields} if in_draft else fields)
        return GmailCall(
            CallDescription(method, changes=True),
            "POST",
            f"{_UPLOAD}{_USER}/{path}",
            self._cost(method),
            (("uploadType", "multipart"), *query),
            _related(metadata, raw),
            f"multipart/related; boundary={_RELATED}",
        )

    def _cost(self, method: GmailMethod) -> int:
        return self.profile.cost(method) if self.profile else 0


def segment(value: str, field: str) -> str:
    """An id as a part of a path: it cannot be empty, and cannot lead elsewhere."""
    if not value or value in (".", ".."):
        raise BadInput(field, "must not be empty" if not value else f"{value!r} is not an id")
    return value if value.isascii() and value.isalnum() else quote(value, safe="")


def search_query(span: Span | None, *terms: str) -> str:
    """A span of time, and further terms, in Gmail's search language. The only place that knows its edges.

    `before:` is exclusive. Whether `after:` includes its own second is not documented, so it names the second before.
    The result may hold a little more than the span, never less: before 1973 the span is widened, and a span that
    starts there has no beginning, which also finds mail dated before 1970.
    """
    words: list[str] = []
    if span is not None and span.start > SHORTEST_EPOCH:
        words.append(f"after:{span.start - 1}")
    if span is not None and span.end is not None:
        words.append(f"before:{max(span.end, SHORTEST_EPOCH)}")
    return " ".join([*words, *(with_whole_dates(term) for term in terms if term)])


def listing(
    query: str, label_ids: Collection[str], include_spam_trash: bool, page_size: int, token: str | None
) -> list[tuple[str, str]]:
    if not 1 <= page_size <= 500:
        raise BadInput("page_size", f"{page_size} is not between 1 and 500")
    pairs = [("maxResults", str(page_size)), *(("labelIds", each) for each in label_ids)]
    pairs += [("q", query)] if query else []
    pairs += [("includeSpamTrash", "true")] if include_spam_trash else []
    return pairs + ([("pageToken", token)] if token else [])


def history(since: str, token: str | None) -> list[tuple[str, str]]:
    return [("startHistoryId", since), ("maxResults", "500"), *([("pageToken", token)] if token else [])]


def label_change(add: Collection[str], remove: Collection[str]) -> dict[str, object]:
    if not add and not remove:
        raise BadInput("labels", "nothing to add and nothing to remove")
    return {"addLabelIds": sorted(add), "removeLabelIds": sorted(remove)}


def many_ids(ids: Collection[str]) -> list[str]:
    if not 1 <= len(ids) <= 1_000:
        raise BadInput("ids", f"{len(ids)} ids; one call takes 1 to 1,000")
    return list(ids)


def _related(metadata: bytes, raw: bytes) -> bytes:
    boundary = _RELATED.encode()
    return b"\r\n".join(
        [
            b"--" + boundary,
            b"Content-Type: application/json; charset=UTF-8\r\n",
            metadata,
            b"--" + boundary,
            b"Content-Type: message/rfc822\r\n",
            raw,
            b"--" + boundary + b"--\r\n",
        ]
    )
