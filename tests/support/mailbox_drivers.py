"""One interface over two clients of a mailbox, Google's and ours. Both return the same plain values, so that one
scenario can be run with each and compared.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from postroom.mailboxes.errors import CallRefused, Gone, HistoryExpired
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.resources import GmailMessage, HistoryRecord, MessageFormat, MessageRef
from postroom.mailboxes.protocol import Failed, Got, MissingMessage
from tests.support.google_client import HttpError
from tests.support.mail import encoded

T = TypeVar("T")
Ids = list[str]


@dataclass(frozen=True)
class Seen:
    """A message as a client shows it."""

    id: str
    thread_id: str
    labels: tuple[str, ...]
    history_id: str | None = None
    internal_date: int | None = None
    size: int | None = None
    snippet: str = ""
    raw: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


class NotThere(Exception):
    """404, in either client."""


class NotTaken(Exception):
    """400, in either client."""


class MailDriver(Protocol):
    async def profile(self) -> tuple[str, int, str]: ...
    async def pages(self, query: str, size: int) -> list[Ids]: ...
    async def get(self, message_id: str, form: str, headers: Ids) -> Seen: ...
    async def get_many(self, ids: Ids) -> dict[str, bytes | None]: ...
    async def modify(self, message_id: str, add: Ids, remove: Ids) -> Seen: ...
    async def modify_many(self, ids: Ids, add: Ids, remove: Ids) -> None: ...
    async def trash(self, message_id: str) -> Seen: ...
    async def untrash(self, message_id: str) -> Seen: ...
    async def delete(self, message_id: str) -> None: ...
    async def delete_many(self, ids: Ids) -> None: ...
    async def insert(self, raw: bytes, labels: Ids) -> Seen: ...
    async def create_draft(self, raw: bytes) -> tuple[str, Seen]: ...
    async def send_draft(self, draft_id: str) -> Seen: ...
    async def delete_draft(self, draft_id: str) -> None: ...
    async def labels(self) -> list[tuple[str, str, bool]]: ...
    async def create_label(self, name: str) -> tuple[str, str, bool]: ...
    async def thread(self, thread_id: str) -> list[Seen]: ...
    async def history(self, since: str) -> list[tuple[object, ...]]: ...


class GoogleDriver:
    def __init__(self, service: Any) -> None:
        self._service = service
        self._users = service.users()
        self._messages = self._users.messages()

    async def _run(self, request: Any) -> Any:
        try:
            return await asyncio.to_thread(request.execute)
        except HttpError as error:
            raise {404: NotThere, 400: NotTaken}.get(error.resp.status, AssertionError)(str(error)) from None

    async def profile(self) -> tuple[str, int, str]:
        found = await self._run(self._users.getProfile(userId="me"))
        return found["emailAddress"], found["messagesTotal"], found["historyId"]

    async def pages(self, query: str, size: int) -> list[Ids]:
        pages = []
        request = self._messages.list(userId="me", q=query, maxResults=size)
        while request is not None:
            answer = await self._run(request)
            pages.append([each["id"] for each in answer.get("messages", [])])
            request = self._messages.list_next(request, answer)
        return pages

    async def get(self, message_id: str, form: str, headers: Ids) -> Seen:
        wanted = {"metadataHeaders": headers} if headers else {}
        return _seen(await self._run(self._messages.get(userId="me", id=message_id, format=form, **wanted)))

    async def get_many(self, ids: Ids) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}

        def keep(name: str, answer: Any, error: Any) -> None:
            assert error is None or error.resp.status == 404
            found[name] = None if error else base64.urlsafe_b64decode(answer["raw"])

        batch = self._service.new_batch_http_request(callback=keep)
        for each in ids:
            batch.add(self._messages.get(userId="me", id=each, format="raw"), request_id=each)
        await asyncio.to_thread(batch.execute)
        return found

    async def modify(self, message_id: str, add: Ids, remove: Ids) -> Seen:
        body = {"addLabelIds": add, "removeLabelIds": remove}
        return _seen(await self._run(self._messages.modify(userId="me", id=message_id, body=body)))

    async def modify_many(self, ids: Ids, add: Ids, remove: Ids) -> None:
        body = {"ids": ids, "addLabelIds": add, "removeLabelIds": remove}
        await self._run(self._messages.batchModify(userId="me", body=body))

    async def trash(self, message_id: str) -> Seen:
        return _seen(await self._run(self._messages.trash(userId="me", id=message_id)))

    async def untrash(self, message_id: str) -> Seen:
        return _seen(await self._run(self._messages.untrash(userId="me", id=message_id)))

    async def delete(self, message_id: str) -> None:
        await self._run(self._messages.delete(userId="me", id=message_id))

    async def delete_many(self, ids: Ids) -> None:
        await self._run(self._messages.batchDelete(userId="me", body={"ids": ids}))

    async def insert(self, raw: bytes, labels: Ids) -> Seen:
        body = {"raw": encoded(raw), "labelIds": labels}
        return _seen(await self._run(self._messages.insert(userId="me", body=body)))

    async def create_draft(self, raw: bytes) -> tuple[str, Seen]:
        body = {"message": {"raw": encoded(raw)}}
        draft = await self._run(self._users.drafts().create(userId="me", body=body))
        return draft["id"], _seen(draft["message"])

    async def send_draft(self, draft_id: str) -> Seen:
        return _seen(await self._run(self._users.drafts().send(userId="me", body={"id": draft_id})))

    async def delete_draft(self, draft_id: str) -> None:
        await self._run(self._users.drafts().delete(userId="me", id=draft_id))

    async def labels(self) -> list[tuple[str, str, bool]]:
        return [_label(each) for each in (await self._run(self._users.labels().list(userId="me")))["labels"]]

    async def create_label(self, name: str) -> tuple[str, str, bool]:
        return _label(await self._run(self._users.labels().create(userId="me", body={"name": name})))

    async def thread(self, thread_id: str) -> list[Seen]:
        thread = await self._run(self._users.threads().get(userId="me", id=thread_id, format="minimal"))
        return [_seen(each) for each in thread["messages"]]

    async def history(self, since: str) -> list[tuple[object, ...]]:
        records: list[tuple[object, ...]] = []
        request = self._users.history().list(userId="me", startHistoryId=since, maxResults=500)
        while request is not None:
            answer = await self._run(request)
            records += [change for record in answer.get("history", []) for change in _changes(record)]
            request = self._users.history().list_next(request, answer)
        return records


def _seen(value: Any) -> Seen:
    raw, date = value.get("raw"), value.get("internalDate")
    return Seen(
        value["id"],
        value["threadId"],
        tuple(sorted(value.get("labelIds", []))),
        value.get("historyId"),
        None if date is None else int(date),
        value.get("sizeEstimate"),
        value.get("snippet", ""),
        None if raw is None else base64.urlsafe_b64decode(raw),
        tuple((each["name"], each["value"]) for each in value.get("payload", {}).get("headers", [])),
    )


def _label(value: Any) -> tuple[str, str, bool]:
    return value["id"], value["name"], value["type"] == "system"


def _changes(record: Any) -> Iterator[tuple[object, ...]]:
    for kind in ("messagesAdded", "messagesDeleted", "labelsAdded", "labelsRemoved"):
        for each in record.get(kind, []):
            labels = tuple(sorted(each.get("labelIds", [])))
            yield record["id"], kind, each["message"]["id"], labels


class PostroomDriver:
    def __init__(self, client: GmailClient) -> None:
        self._client = client

    async def _run(self, act: Callable[[], Any]) -> Any:
        try:
            return await act()
        except (Gone, HistoryExpired) as error:
            raise NotThere(str(error)) from None
        except CallRefused as error:
            raise NotTaken(str(error)) from None

    async def profile(self) -> tuple[str, int, str]:
        found = await self._client.get_profile()
        return found.email, found.messages_total, found.history_id

    async def pages(self, query: str, size: int) -> list[Ids]:
        pages = self._client.list_messages(query, page_size=size)
        return [[each.id for each in page.messages] async for page in pages]

    async def get(self, message_id: str, form: str, headers: Ids) -> Seen:
        return _ours(await self._run(lambda: self._client.get_message(message_id, MessageFormat(form), headers)))

    async def get_many(self, ids: Ids) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        for each in await self._client.get_messages(ids):
            match each:
                case Got(message):
                    found[message.id] = message.raw
                case MissingMessage(id):
                    found[id] = None
                case Failed(_, error):
                    raise error
        return found

    async def modify(self, message_id: str, add: Ids, remove: Ids) -> Seen:
        return _our_ref(await self._run(lambda: self._client.modify_message(message_id, add=add, remove=remove)))

    async def modify_many(self, ids: Ids, add: Ids, remove: Ids) -> None:
        await self._client.modify_messages(ids, add=add, remove=remove)

    async def trash(self, message_id: str) -> Seen:
        return _our_ref(await self._client.trash_message(message_id))

    async def untrash(self, message_id: str) -> Seen:
        return _our_ref(await self._client.untrash_message(message_id))

    async def delete(self, message_id: str) -> None:
        await self._run(lambda: self._client.delete_message(message_id))

    async def delete_many(self, ids: Ids) -> None:
        await self._client.delete_messages(ids)

    async def insert(self, raw: bytes, labels: Ids) -> Seen:
        return _our_ref(await self._client.insert_message(raw, label_ids=labels))

    async def create_draft(self, raw: bytes) -> tuple[str, Seen]:
        draft = await self._client.create_draft(raw)
        return draft.id, _ours(draft.message)

    async def send_draft(self, draft_id: str) -> Seen:
        return _our_ref(await self._run(lambda: self._client.send_draft(draft_id)))

    async def delete_draft(self, draft_id: str) -> None:
        await self._client.delete_draft(draft_id)

    async def labels(self) -> list[tuple[str, str, bool]]:
        return [(each.id, each.name, each.is_system) for each in await self._client.list_labels()]

    async def create_label(self, name: str) -> tuple[str, str, bool]:
        label = await self._client.create_label(name)
        return label.id, label.name, label.is_system

    async def thread(self, thread_id: str) -> list[Seen]:
        return [_ours(each) for each in (await self._run(lambda: self._client.get_thread(thread_id))).messages]

    async def history(self, since: str) -> list[tuple[object, ...]]:
        async def read() -> list[tuple[object, ...]]:
            pages = self._client.list_history(since)
            return [change async for page in pages for record in page.records for change in _our_changes(record)]

        found: list[tuple[object, ...]] = await self._run(read)
        return found


def _ours(message: GmailMessage) -> Seen:
    return Seen(
        message.id,
        message.thread_id,
        tuple(sorted(message.label_ids)),
        message.history_id,
        message.internal_date_ms,
        message.size_estimate,
        message.snippet,
        message.raw,
        message.headers,
    )


def _our_ref(ref: MessageRef) -> Seen:
    return Seen(ref.id, ref.thread_id, tuple(sorted(ref.label_ids)))


def _our_changes(record: HistoryRecord) -> Iterator[tuple[object, ...]]:
    yield from ((record.id, "messagesAdded", each.id, ()) for each in record.added)
    yield from ((record.id, "messagesDeleted", each.id, ()) for each in record.deleted)
    for kind, changes in (("labelsAdded", record.labels_added), ("labelsRemoved", record.labels_removed)):
        yield from ((record.id, kind, each.message.id, tuple(sorted(each.label_ids))) for each in changes)
