"""The Gmail API as typed methods. A client serves one account; all its calls go through that account's limiter."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import TypeVar

import httpx2

from postroom.domain.clock import Backoff, Clock
from postroom.domain.errors import BadInput
from postroom.mailboxes.errors import MailboxThrottled, MailboxUnavailable, MailboxUnreachable
from postroom.mailboxes.gmail import calls, resources
from postroom.mailboxes.gmail.calls import Calls, segment
from postroom.mailboxes.gmail.error_mapping import GmailAnswer
from postroom.mailboxes.gmail.fetching import BatchFetcher, CallGatherer, Fetched, batch_size_for
from postroom.mailboxes.gmail.methods import GmailMethod, QuotaProfile
from postroom.mailboxes.gmail.transport import (
    GmailCall,
    Json,
    ParsedAnswer,
    Transport,
    TransportConfig,
    read_as,
    read_json,
)
from postroom.mailboxes.limiter import Limiter
from postroom.mailboxes.ports import Credentials, PriorityLane
from postroom.tls import trusted

T = TypeVar("T")
PAGE_SIZE = 500
_ATTEMPTS_OF_A_PAGE = 3
_BACKOFF = Backoff(0.5, 10.0)


class GmailClient:
    """`lane` says who is asking; `at` gives the same client in another lane."""

    def __init__(
        self,
        transport: Transport,
        profile: QuotaProfile | None,
        *,
        lane: PriorityLane = PriorityLane.SYNC,
        batch_size: int | None = None,
        dice: random.Random | None = None,
        gatherer: CallGatherer | None = None,
    ) -> None:
        self.lane = lane
        self._transport = transport
        self._profile = profile
        self._calls = Calls(profile)
        self._batch_size = batch_size or batch_size_for(profile)
        self._dice = dice or random.Random()  # noqa: S311 - jitter, no secret
        self._gatherer = gatherer or CallGatherer(transport, self._batch_size)

    @property
    def batch_size(self) -> int:
        """How many messages one request of `get_messages` asks for."""
        return self._batch_size

    @property
    def profile(self) -> QuotaProfile | None:
        return self._profile

    @property
    def limiter(self) -> Limiter:
        return self._transport.limiter

    def at(self, lane: PriorityLane) -> GmailClient:
        return GmailClient(
            self._transport,
            self._profile,
            lane=lane,
            batch_size=self._batch_size,
            dice=self._dice,
            gatherer=self._gatherer,
        )

    async def get_profile(self) -> resources.Profile:
        return await self._send(self._calls.read(GmailMethod.GET_PROFILE, "profile"), resources.profile)

    # Messages

    async def list_messages(
        self,
        query: str = "",
        *,
        label_ids: Collection[str] = (),
        include_spam_trash: bool = False,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[resources.MessagePage]:
        """The pages of a search; their order is nearly, not strictly, by date. A page that fails is asked for again a
        few times: a listing of many pages that began anew after each failure might never end."""
        page_token: str | None = None
        tokens: set[str | None] = set()
        while page_token not in tokens:
            tokens.add(page_token)
            pairs = calls.listing(query, label_ids, include_spam_trash, page_size, page_token)
            call = self._calls.read(GmailMethod.MESSAGES_LIST, "messages", pairs)
            page = await self._page(call)
            yield page
            page_token = page.next_token
            if page_token is None:
                return
        raise _circle(GmailMethod.MESSAGES_LIST)

    async def _page(self, call: GmailCall) -> resources.MessagePage:
        for attempt in range(1, _ATTEMPTS_OF_A_PAGE):
            try:
                return await self._send_gathered(call, resources.message_page)
            except (MailboxThrottled, MailboxUnavailable) as error:
                pause_s = _BACKOFF.delay_s(attempt, error.retry_after)
                if isinstance(error, MailboxUnreachable) or pause_s > _BACKOFF.longest_s:
                    raise  # that long, the caller waits, and says so
            await self._transport.clock.sleep(pause_s)
        return await self._send_gathered(call, resources.message_page)

    async def get_message(
        self,
        message_id: str,
        format: resources.MessageFormat = resources.MessageFormat.RAW,
        headers: Collection[str] = (),
    ) -> resources.GmailMessage:
        """`headers` names those wanted, for METADATA; none means all."""
        call = self._get(message_id, format, headers)
        if format is resources.MessageFormat.MINIMAL:
            return await self._send_gathered(call, resources.message)
        return await self._send(
            call, resources.raw_message if format is resources.MessageFormat.RAW else resources.message
        )

    async def get_messages(
        self,
        ids: Iterable[str],
        format: resources.MessageFormat = resources.MessageFormat.RAW,
        headers: Collection[str] = (),
    ) -> tuple[Fetched, ...]:
        """Fetch many in batches. Each id gets a result: the message, missing, or the reason why it failed."""
        make = resources.raw_message if format is resources.MessageFormat.RAW else resources.message
        fetcher = BatchFetcher(
            self._transport,
            lambda message_id: self._get(message_id, format, headers),
            make,
            self.lane,
            self._batch_size,
            dice=self._dice,
        )
        return await fetcher.fetch(ids)

    async def modify_message(
        self, message_id: str, *, add: Collection[str] = (), remove: Collection[str] = ()
    ) -> resources.MessageRef:
        path = f"messages/{segment(message_id, 'message_id')}/modify"
        body = calls.label_change(add, remove)
        call = self._calls.change(GmailMethod.MESSAGES_MODIFY, path, body, f"message {message_id}")
        return await self._send_gathered(call, resources.ref)

    async def modify_messages(
        self, ids: Collection[str], *, add: Collection[str] = (), remove: Collection[str] = ()
    ) -> None:
        """Up to a thousand in one call; Gmail ignores ids that no longer exist."""
        body = calls.label_change(add, remove) | {"ids": calls.many_ids(ids)}
        await self._do(self._calls.change(GmailMethod.MESSAGES_BATCH_MODIFY, "messages/batchModify", body))

    async def trash_message(self, message_id: str) -> resources.MessageRef:
        return await self._on_message(GmailMethod.MESSAGES_TRASH, message_id, "trash")

    async def untrash_message(self, message_id: str) -> resources.MessageRef:
        return await self._on_message(GmailMethod.MESSAGES_UNTRASH, message_id, "untrash")

    async def delete_message(self, message_id: str) -> None:
        """For good, not to the trash; needs the full permission."""
        await self._delete(GmailMethod.MESSAGES_DELETE, "messages", message_id, "message")

    async def delete_messages(self, ids: Collection[str]) -> None:
        body: dict[str, object] = {"ids": calls.many_ids(ids)}
        await self._do(self._calls.change(GmailMethod.MESSAGES_BATCH_DELETE, "messages/batchDelete", body))

    async def insert_message(
        self,
        raw: bytes,
        *,
        label_ids: Collection[str] = (),
        thread_id: str | None = None,
        dated_by_header: bool = False,
    ) -> resources.MessageRef:
        """Put a message into the mailbox as it is, like IMAP's APPEND. Its date is now, or that of its header."""
        query = [("internalDateSource", "dateHeader")] if dated_by_header else []
        call = self._calls.bring(GmailMethod.MESSAGES_INSERT, "messages", raw, _fields(label_ids, thread_id), query)
        return await self._send(call, resources.ref)

    # Drafts

    async def create_draft(self, raw: bytes, *, thread_id: str | None = None) -> resources.Draft:
        call = self._calls.bring(GmailMethod.DRAFTS_CREATE, "drafts", raw, _fields((), thread_id))
        return await self._send(call, resources.draft)

    async def list_drafts(self, query: str = "", *, page_size: int = PAGE_SIZE) -> tuple[resources.Draft, ...]:
        """One page of drafts without their content, usually newest first."""
        pairs = calls.listing(query, (), False, page_size, None)
        return await self._send(self._calls.read(GmailMethod.DRAFTS_LIST, "drafts", pairs), resources.drafts)

    async def send_draft(self, draft_id: str) -> resources.MessageRef:
        """The draft disappears; sending one that was already sent raises Gone."""
        segment(draft_id, "draft_id")
        call = self._calls.change(GmailMethod.DRAFTS_SEND, "drafts/send", {"id": draft_id}, f"draft {draft_id}")
        return await self._send(call, resources.ref)

    async def delete_draft(self, draft_id: str) -> None:
        await self._delete(GmailMethod.DRAFTS_DELETE, "drafts", draft_id, "draft")

    # Labels and threads

    async def list_labels(self) -> tuple[resources.GmailLabel, ...]:
        return await self._send(self._calls.read(GmailMethod.LABELS_LIST, "labels"), resources.labels)

    async def create_label(self, name: str) -> resources.GmailLabel:
        if not name.strip():
            raise BadInput("name", "a label needs a name")
        call = self._calls.change(GmailMethod.LABELS_CREATE, "labels", {"name": name}, "a label")
        return await self._send(call, resources.label)

    async def get_thread(
        self, thread_id: str, format: resources.MessageFormat = resources.MessageFormat.MINIMAL
    ) -> resources.GmailThread:
        """Gmail does not return RAW for threads."""
        if format is resources.MessageFormat.RAW:
            raise BadInput("format", "threads come as full, metadata or minimal; get the messages for raw bytes")
        path = f"threads/{segment(thread_id, 'thread_id')}"
        call = self._calls.read(GmailMethod.THREADS_GET, path, [("format", format)], f"thread {thread_id}")
        return await self._send(call, resources.thread)

    # What changed

    async def list_history(self, since: str) -> AsyncIterator[resources.HistoryPage]:
        """The changes after a history id. Raises HistoryExpired if it is too old. Pages may be empty."""
        if not since.isdecimal():
            raise BadInput("since", f"{since[:40]!r} is not a history id")
        page_token: str | None = None
        tokens: set[str | None] = set()
        while page_token not in tokens:
            tokens.add(page_token)
            pairs = calls.history(since, page_token)
            page = await self._send(
                self._calls.read(GmailMethod.HISTORY_LIST, "history", pairs), resources.history_page
            )
            yield page
            page_token = page.next_token
            if page_token is None:
                return
        raise _circle(GmailMethod.HISTORY_LIST)

    def _get(self, message_id: str, format: resources.MessageFormat, headers: Collection[str]) -> GmailCall:
        query = [("format", str(format)), *(("metadataHeaders", name) for name in headers)]
        path = f"messages/{segment(message_id, 'message_id')}"
        return self._calls.read(GmailMethod.MESSAGES_GET, path, query, f"message {message_id}")

    async def _on_message(self, method: GmailMethod, message_id: str, verb: str) -> resources.MessageRef:
        path = f"messages/{segment(message_id, 'message_id')}/{verb}"
        return await self._send(self._calls.change(method, path, None, f"message {message_id}"), resources.ref)

    async def _delete(self, method: GmailMethod, collection: str, id: str, kind: str) -> None:
        path = f"{collection}/{segment(id, f'{kind}_id')}"
        await self._do(self._calls.change(method, path, None, f"{kind} {id}", verb="DELETE"))

    async def _do(self, call: GmailCall) -> None:
        await self._send(call, lambda value: None)

    async def _send(self, call: GmailCall, make: Callable[[Json], T]) -> T:
        def read(answer: GmailAnswer) -> ParsedAnswer[T]:
            return ParsedAnswer(read_as(make, read_json(answer, call.asked), call.asked))

        return await self._transport.send(call, self.lane, read)

    async def _send_gathered(self, call: GmailCall, make: Callable[[Json], T]) -> T:
        """In one request with others of the same moment; only for calls that may be made twice."""
        return await self._gatherer.send(
            call, self.lane, lambda answer: read_as(make, read_json(answer, call.asked), call.asked)
        )


def _circle(method: GmailMethod) -> MailboxUnavailable:
    return MailboxUnavailable(f"Gmail's pages of {method} go round in a circle")


def _fields(label_ids: Collection[str], thread_id: str | None) -> dict[str, object]:
    fields: dict[str, object] = {"labelIds": sorted(label_ids)} if label_ids else {}
    return fields | ({"threadId": thread_id} if thread_id else {})


@contextlib.asynccontextmanager
async def connected(
    credentials: Credentials,
    limiter: Limiter,
    clock: Clock,
    *,
    profile: QuotaProfile | None = None,
    config: TransportConfig | None = None,
    lane: PriorityLane = PriorityLane.SYNC,
    batch_size: int | None = None,
    http_transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncIterator[GmailClient]:
    """A client with its own connections, which end with the block; the limiter is the account's, shared by all."""
    config = config or TransportConfig()
    most = limiter.gate.limits.max_in_flight
    limits = httpx2.Limits(max_connections=most, max_keepalive_connections=most)
    async with httpx2.AsyncClient(limits=limits, transport=http_transport, trust_env=False, verify=trusted()) as http:
        yield GmailClient(
            Transport(http, credentials, limiter, clock, config), profile, lane=lane, batch_size=batch_size
        )
