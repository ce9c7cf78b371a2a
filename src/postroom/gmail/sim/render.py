"""Messages as JSON, in the four formats that the API knows."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Collection
from enum import StrEnum

from postroom.gmail.sim.errors import invalid
from postroom.gmail.sim.mime import Part, headers_of, take_apart
from postroom.gmail.sim.model import MailSummary
from postroom.gmail.sim.opaque import Sealer
from postroom.gmail.sim.snippet import snippet
from postroom.gmail.sim.store import Store

Json = dict[str, object]


class Format(StrEnum):
    MINIMAL = "minimal"
    FULL = "full"
    RAW = "raw"
    METADATA = "metadata"


def format_named(text: str) -> Format:
    try:
        return Format(text.lower())
    except ValueError:
        raise invalid(f"Invalid value for format: {text[:40]}") from None


def labels_shown(label_ids: frozenset[str]) -> Json:
    """Archived mail that is read may have no label, and then the answer has no list of them, not an empty one."""
    return {"labelIds": sorted(label_ids)} if label_ids else {}


class Renderer:
    def __init__(self, store: Store, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer

    def message(self, mail: MailSummary, form: Format, only_headers: Collection[str] = ()) -> Json:
        raw = self._store.raw(mail.id)
        shown: Json = {
            "id": mail.id,
            "threadId": mail.thread_id,
            **labels_shown(mail.label_ids),
            "snippet": snippet(raw),
            "sizeEstimate": len(raw),
            "historyId": str(self._store.history_id(mail.id)),
            "internalDate": str(mail.internal_date),
        }
        match form:
            case Format.RAW:
                shown["raw"] = urlsafe_b64encode(raw).decode("ascii")
            case Format.FULL:
                shown["payload"] = self._part(mail.id, take_apart(raw))
            case Format.METADATA:
                shown["payload"] = _headers_only(raw, only_headers)
            case Format.MINIMAL:
                pass
        return shown

    def attachment(self, message_id: str, attachment_id: str) -> Json:
        part_id = self._sealer.open(f"attachment:{message_id}", attachment_id)
        for part in take_apart(self._store.raw(message_id)).walk() if part_id is not None else ():
            if part.part_id == part_id:
                return {"size": len(part.content), "data": urlsafe_b64encode(part.content).decode("ascii")}
        raise invalid("Invalid attachment token")

    def _part(self, message_id: str, part: Part) -> Json:
        shown: Json = {
            "partId": part.part_id,
            "mimeType": part.mime_type,
            "filename": part.filename,
            "headers": [{"name": name, "value": value} for name, value in part.headers],
            "body": self._body(message_id, part),
        }
        if part.children:
            shown["parts"] = [self._part(message_id, child) for child in part.children]
        return shown

    def _body(self, message_id: str, part: Part) -> Json:
        if part.is_attachment:
            token = self._sealer.seal(f"attachment:{message_id}", part.part_id)
            return {"attachmentId": token, "size": len(part.content)}
        if not part.content:
            return {"size": 0}
        return {"size": len(part.content), "data": urlsafe_b64encode(part.content).decode("ascii")}


def _headers_only(raw: bytes, only: Collection[str]) -> Json:
    wanted = {name.lower() for name in only}
    headers = headers_of(raw)
    mime_type = next((value for name, value in headers if name.lower() == "content-type"), "text/plain")
    return {
        "mimeType": mime_type.partition(";")[0].strip().lower(),
        "headers": [{"name": key, "value": value} for key, value in headers if not wanted or key.lower() in wanted],
    }
