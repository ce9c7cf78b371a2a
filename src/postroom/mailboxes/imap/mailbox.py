"""IMAP as a `Mailbox`.

The server is asked what changed, and the places of messages are brought up to date with it (`refresh`); what is listed,
and what changed since a cursor, is then read from there. A message's id is the hash of its bytes, so these are read
once to list it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from postroom.domain.errors import PostroomError
from postroom.mail.query import nodes
from postroom.mail.query.grammar import parse
from postroom.mailboxes import protocol
from postroom.mailboxes.errors import (
    CallRefused,
    Gone,
    LabelGone,
    MailboxUnavailable,
    PermissionMissing,
)
from postroom.mailboxes.imap.changing import (
    CopiedPlaces,
    FolderRef,
    PlanRunner,
    Uploaded,
    append_message,
    folder_labels,
    new_wire_name,
    plan_change,
)
from postroom.mailboxes.imap.places import (
    GMAIL_LABEL,
    IMPORTANT,
    KEYWORD,
    NEW_FOLDERS,
    SYSTEM_LABELS,
    EntryKind,
    FlagFilter,
    FolderRole,
    Folders,
    FolderState,
    IdentifiedPlace,
    JournalEntry,
    Place,
    PlaceKey,
    by_message,
    digest,
    flag_behind,
    header_id_for,
    header_id_of,
    is_digest,
    is_folder_id,
    is_gmail_id,
    labels_of,
    mailbox_labels,
)
from postroom.mailboxes.imap.reading import portions_of
from postroom.mailboxes.imap.refusals import after_adding
from postroom.mailboxes.imap.searching import (
    PlaceFacts,
    may_match,
    search_folder,
    search_gmail,
    searched_nodes,
)
from postroom.mailboxes.imap.session import ImapSession
from postroom.mailboxes.imap.wire import quoted
from postroom.mailboxes.limiter import Limiter
from postroom.mailboxes.ports import PriorityLane
from postroom.reading.mail import read_headers
from postroom.telemetry import logs

log = logs.get(__name__)

_BATCH = 100
_LISTINGS_AT_ONCE = 8
"""A listing reads the messages ahead of their fetching, and only so many bytes are kept until then."""
_PAGE_OF_CHANGES = 500
_UPLOADS_AT_ONCE = 3
_PAGES_AHEAD, _BYTES_AHEAD = 4, 16 << 20
"""A walk reads so many pages together, where they are not larger: each folder is then opened once for all of them."""
_READ_WHOLE = 10_000
"""So many messages of a folder are found at once: to find them page by page takes as long for each page."""
_FOLDERS_KNOWN_S = 10.0
"""Before a message is appended: a folder that was deleted within this time is refused by the server."""
_LEFT_OUT = frozenset({FolderRole.TRASH, FolderRole.SPAM})


MessagePlaces = defaultdict[protocol.MessageId, list[Place]]


class ImapMailbox:
    def __init__(self, session: ImapSession, lane: PriorityLane = PriorityLane.SYNC) -> None:
        self._session = session
        self._store = session.store
        self._lane = lane

    @property
    def lane(self) -> PriorityLane:
        return self._lane

    @property
    def limiter(self) -> Limiter:
        return self._session.limiter

    @property
    def units_per_minute(self) -> int | None:
        return None

    @property
    def batch_size(self) -> int:
        return _BATCH

    @property
    def listings_at_once(self) -> int:
        return _LISTINGS_AT_ONCE

    def at(self, lane: PriorityLane) -> ImapMailbox:
        return ImapMailbox(self._session, lane)

    async def identity(self) -> protocol.MailboxIdentity:
        await self._refresh()
        journal = await self._store.journal()
        return protocol.MailboxIdentity(self._session.email, journal.cursor, await self._store.count())

    async def _refresh(self, flags_in: Collection[str] | None = (), copied: CopiedPlaces | None = None) -> Folders:
        return await self._session.refresh(self._lane, flags_in=flags_in, copied=copied)

    async def list(
        self,
        span: protocol.Span | None = None,
        *,
        query: str = "",
        label_id: protocol.LabelId | None = None,
        everywhere: bool = True,
        page_size: int = protocol.PAGE_SIZE,
        max_age_s: float = 0.0,
    ) -> AsyncIterator[protocol.ListedPage]:
        node = parse(query, self._session.now_ms()) if query.strip() else None
        everywhere = everywhere or (node is not None and nodes.opens_spam_and_trash(node))
        flags_in = None if label_id in ("UNREAD", "STARRED") else ()
        folders = await self._session.refresh(self._lane, flags_in=flags_in, max_age_s=max_age_s)
        wanted = _folders_of(label_id, folders, everywhere=everywhere)
        has_label = wanted is not None and all(folders[each].label_id == label_id for each in wanted)
        is_walk = max_age_s > 0
        together = page_size * _PAGES_AHEAD if is_walk else page_size
        if node is None:
            is_small = has_label and sum(folders[each].messages for each in wanted or ()) <= _READ_WHOLE
            most = None if is_small else together
            source = self._by_portions(span, wanted, None if has_label else flag_behind(label_id), most)
        else:
            source = _one(await self._found(query, node, span, wanted, folders))
        listed: set[protocol.MessageId] = set()
        page: list[protocol.MessageId] = []
        async for some in source:
            for part in portions_of(some, together, _BYTES_AHEAD):
                ids = await self._ids_at(part, folders, ahead=is_walk)
                fresh = [each for each in ids if each not in listed]
                listed.update(fresh)
                page += fresh if has_label else await self._labelled(fresh, label_id, folders)
                while len(page) >= page_size:
                    yield protocol.ListedPage(tuple(page[:page_size]), False, len(listed))
                    page = page[page_size:]
        yield protocol.ListedPage(tuple(page), True, len(listed))

    async def _by_portions(
        self, span: protocol.Span | None, folder_ids: Collection[str] | None, flag: FlagFilter | None, most: int | None
    ) -> AsyncIterator[Sequence[Place]]:
        """All places, so many at a time: a mailbox may have more than fit into memory."""
        last: Place | None = None
        while some := await self._store.listed(span, folder_ids, after=last, most=most, flag=flag):
            yield some
            last = some[-1]
            if most is None or len(some) < most:
                return

    async def _found(
        self,
        query: str,
        node: nodes.Node,
        span: protocol.Span | None,
        folder_ids: Collection[str] | None,
        folders: Folders,
    ) -> Sequence[Place]:
        """Those that may match a query. A Message-ID is known of what was read, so that only the rest is searched."""
        if not isinstance(node, nodes.MessageId):
            return await self._matching(query, node, await self._store.listed(span, folder_ids), folders)
        header_id = header_id_for(node.value)
        places = await self._store.listed(span, folder_ids, header_id=header_id)
        found = [place for place in places if place.header_id == header_id]
        rest = [place for place in places if not place.header_id and not is_digest(place.message_id or "")]
        return [*found, *(await self._matching(query, node, rest, folders) if rest else ())]

    async def _matching(
        self, query: str, node: nodes.Node, places: Sequence[Place], folders: Folders
    ) -> Sequence[Place]:
        """Those that may match a query."""
        if places and all(is_gmail_id(place.message_id or "") for place in places):
            return await self._found_by_gmail(query, places, folders)
        found: dict[nodes.Text | nodes.MessageId, set[PlaceKey]] = {}
        wanted = list(dict.fromkeys(searched_nodes(node)))
        for folder_id in sorted({place.folder_id for place in places}) if wanted else ():
            async with self._session.connect(self._lane, folders[folder_id].wire) as connection:
                for each, keys in (await search_folder(connection, folders[folder_id], wanted)).items():
                    found.setdefault(each, set()).update(keys)
        names = {label.id: label.name.casefold() for label in mailbox_labels(folders, await self._store.keywords())}
        ids = {place.message_id for place in places if place.message_id is not None}
        known = by_message(await self._store.places_of(ids))

        def facts(place: Place) -> PlaceFacts:
            all_of_it = known.get(place.message_id or "", [place])
            labels = labels_of(all_of_it, folders)
            return PlaceFacts(all_of_it, labels, frozenset(names[each] for each in labels if each in names), found)

        return [place for place in places if may_match(node, facts(place))]

    async def _found_by_gmail(self, query: str, places: Sequence[Place], folders: Folders) -> Sequence[Place]:
        """Gmail searches itself, in its own language, which is the one that queries are in."""
        found: set[PlaceKey] = set()
        for folder_id in sorted({place.folder_id for place in places}):
            async with self._session.connect(self._lane, folders[folder_id].wire) as connection:
                found |= await search_gmail(connection, folders[folder_id], query)
        return [place for place in places if place.key in found]

    async def _ids_at(
        self, places: Sequence[Place], folders: Folders, *, ahead: bool = False
    ) -> Sequence[protocol.MessageId]:
        """The messages at these places, each once."""
        unknown = [place for place in places if place.message_id is None]
        reader = self._session.reader(self._lane)
        read = reader.identify_ahead if ahead else reader.identify
        known = await read(unknown, folders) if unknown else {}
        ids = (place.message_id or known.get(place.key) for place in places)
        return list(dict.fromkeys(each for each in ids if each is not None))

    async def _labelled(
        self, ids: Sequence[protocol.MessageId], label_id: protocol.LabelId | None, folders: Folders
    ) -> Sequence[protocol.MessageId]:
        if label_id is None or not ids:
            return ids
        places = by_message(await self._store.places_of(ids))
        return [each for each in ids if label_id in labels_of(places[each], folders)]

    async def fetch(
        self, ids: Iterable[protocol.MessageId], detail: protocol.Detail = protocol.Detail.RAW
    ) -> tuple[protocol.FetchResult, ...]:
        wanted = list(dict.fromkeys(ids))
        places = by_message(await self._store.places_of(wanted))
        folders: Folders = await self._store.folders()
        if detail is protocol.Detail.FLAGS or len(places) < len(wanted):
            folders = await self._refresh({place.folder_id for some in places.values() for place in some})
            places = await self._places_of(wanted, folders)
        found = await self._read(wanted, places, folders, detail)
        moved = [each for each in wanted if places[each] and isinstance(found[each], protocol.MissingMessage)]
        if moved:
            folders = await self._refresh()
            places = by_message(await self._store.places_of(moved))
            found |= await self._read(moved, places, folders, detail)
        return tuple(found[each] for each in wanted)

    async def _places_of(self, ids: Collection[protocol.MessageId], folders: Folders) -> MessagePlaces:
        """The places of these messages. What lies at a place that was never read may be one of them, so before one
        counts as gone, such places are read, a portion at a time."""
        places = by_message(await self._store.places_of(ids))
        if not any(is_digest(each) and each not in places for each in ids):
            return places
        for some in portions_of(await self._store.unknown()):
            await self._session.reader(self._lane).identify(some, folders)
            places = by_message(await self._store.places_of(ids))
            if all(each in places for each in ids):
                break
        return places

    async def _read(
        self,
        ids: Sequence[protocol.MessageId],
        places: Mapping[protocol.MessageId, Sequence[Place]],
        folders: Folders,
        detail: protocol.Detail,
    ) -> dict[protocol.MessageId, protocol.FetchResult]:
        """From one place of each message; from the next where that does not give it."""
        results: dict[protocol.MessageId, protocol.FetchResult] = {each: protocol.MissingMessage(each) for each in ids}
        if detail is protocol.Detail.FLAGS:
            return {
                each: protocol.Got(_remote(each, places[each], folders)) if places[each] else results[each]
                for each in ids
            }
        left = {each: list(places[each]) for each in ids if places[each]}
        if detail is protocol.Detail.RAW:
            for each in list(left):
                raw = self._session.spool.take(each)
                if raw is not None:
                    results[each] = protocol.Got(_remote(each, left.pop(each), folders, raw=raw))
        item = b"BODY.PEEK[]" if detail is protocol.Detail.RAW else b"BODY.PEEK[HEADER]"
        while left:
            tried = {each: some.pop(0) for each, some in left.items()}
            read = await self._session.reader(self._lane).read(list(tried.values()), folders, item)
            for each, place in tried.items():
                result = await self._judge(each, place, read.get(place.key), places[each], folders, detail)
                if result is not None:
                    results[each] = result
                if isinstance(result, protocol.Got) or not left[each]:
                    del left[each]
        return results

    async def _judge(
        self,
        message_id: protocol.MessageId,
        place: Place,
        read: bytes | PostroomError | None,
        places: Sequence[Place],
        folders: Folders,
        detail: protocol.Detail,
    ) -> protocol.FetchResult | None:
        """None where the message is not at this place."""
        if read is None:
            return None
        if isinstance(read, PostroomError):
            return protocol.Failed(message_id, read)
        if detail is protocol.Detail.HEADERS:
            return protocol.Got(_remote(message_id, places, folders, head=read))
        now = message_id if is_gmail_id(message_id) else digest(read)
        if now != message_id or place.is_provisional:
            await self._store.identify([IdentifiedPlace(place, now, header_id_of(read[: 1 << 18]))])
            self._session.spool.put(now, read)
        return protocol.Got(_remote(message_id, places, folders, raw=read)) if now == message_id else None

    async def get(
        self, message_id: protocol.MessageId, detail: protocol.Detail = protocol.Detail.RAW
    ) -> protocol.RemoteMessage:
        [result] = await self.fetch([message_id], detail)
        match result:
            case protocol.Got(message):
                return message
            case protocol.Failed(_, error):
                raise error
            case _:
                raise Gone("id", f"message {message_id} is not in the mailbox")

    async def changes(self, since: protocol.Cursor) -> AsyncIterator[protocol.ChangePage]:
        """A message whose bytes were not read yet, such as one that another lane recorded meanwhile, is reported when
        they were. The cursor stays before it, so that it is not passed over."""
        begin = (await self._store.journal()).generation_at(since)
        folders = await self._refresh(None)
        unknown = await self._store.unknown(since=begin)
        if unknown:
            await self._session.reader(self._lane).identify(unknown, folders)
        journal = await self._store.journal()
        begin = journal.generation_at(since)
        unread = await self._store.unknown(since=begin)
        reach = min([journal.generation, *(place.seen - 1 for place in unread)])
        entries = [each for each in await self._store.entries(begin) if each.generation <= reach]
        for some in _pages(entries):
            is_last = some[-1] is entries[-1]
            yield _folded(some, journal.cursor_at(reach if is_last else some[-1].generation))
        if not entries:
            yield protocol.ChangePage(cursor=journal.cursor_at(reach))

    async def labels(self) -> tuple[protocol.MailboxLabel, ...]:
        return mailbox_labels(await self._refresh(), await self._store.keywords())

    async def create_label(self, name: str) -> protocol.MailboxLabel:
        if is_folder_id(name) or name.startswith(KEYWORD):
            raise LabelGone(f"There is no label with the id {name} in the mailbox; it may have been deleted.")
        same = [each for each in await self.labels() if each.name.casefold() == name.casefold()]
        if same:
            return same[0]
        folders = await self._refresh()
        wire = new_wire_name(name, folders)
        await self._create(wire)
        made = next((each for each in (await self._refresh()).values() if each.wire == wire), None)
        if made is None:
            raise MailboxUnavailable(f"The folder {name!r} was made and is not listed")
        return protocol.MailboxLabel(made.id, made.label_name)

    async def _create(self, wire: str) -> None:
        """Another caller may create the same folder at the same time."""
        async with self._session.connect(self._lane) as connection:
            try:
                await connection.command(b"CREATE", quoted(wire), changes=True)
            except CallRefused as error:
                if error.reason != "alreadyexists":
                    raise
            await connection.command(b"SUBSCRIBE", quoted(wire))

    async def _make_folder(self, role: FolderRole) -> FolderState:
        wire = new_wire_name(NEW_FOLDERS[role], await self._store.folders())
        await self._create(wire)
        made = next((each for each in (await self._refresh()).values() if each.role is role), None)
        if made is None:
            raise MailboxUnavailable(f"The folder {wire!r} was made and is not listed")
        return made

    async def modify(
        self, ids: Collection[protocol.MessageId], change: protocol.MailboxChange
    ) -> Mapping[protocol.MessageId, frozenset[protocol.LabelId]]:
        if not ids:
            return {}
        folders = await self._refresh()
        await self._places_of(ids, folders)
        places = by_message(await self._confirmed(ids, folders))
        for each in ids:
            if not places[each]:
                raise Gone("id", f"message {each} is not in the mailbox")
        steps = [step for each in ids for step in plan_change(places[each], folders, change)]
        runner = PlanRunner(self._session.connector(self._lane), folders, self._make_folder)
        concerned = {place.folder_id for some in places.values() for place in some}
        if steps:
            try:
                await runner.run(steps)
            finally:
                folders = await self._refresh(concerned, runner.copied)
        if len(ids) > 1:
            return {}
        [message_id] = ids
        if change.move is protocol.Move.DELETE:
            return {message_id: frozenset()}
        return {message_id: labels_of(await self._store.places_of([message_id]), folders)}

    async def _confirmed(self, ids: Collection[protocol.MessageId], folders: Folders) -> Sequence[Place]:
        """The places of these messages; where one was matched without its bytes, they are read first."""
        places = await self._read_again(ids, folders)
        if any(place.is_provisional for place in places):
            raise MailboxUnavailable("A message could not be read again before it is changed; nothing was changed")
        return places

    async def _read_again(self, ids: Collection[protocol.MessageId], folders: Folders) -> Sequence[Place]:
        places = await self._store.places_of(ids)
        doubtful = [place for place in places if place.is_provisional]
        if not doubtful:
            return places
        await self._session.reader(self._lane).identify(doubtful, folders)
        return await self._store.places_of(ids)

    async def confirm(self, ids: Collection[protocol.MessageId]) -> frozenset[protocol.MessageId]:
        places = await self._read_again(ids, await self._refresh())
        return frozenset(place.message_id for place in places if place.is_provisional and place.message_id is not None)

    async def append(
        self,
        raw: bytes,
        label_ids: Collection[protocol.LabelId] = (),
        thread_id: str | None = None,
        received: datetime | None = None,
    ) -> protocol.MessageId:
        """The id is that of the bytes as the server gives them back. IMAP has no threads, so `thread_id` is ignored."""
        [result] = await self.append_all([protocol.NewMessage(raw, frozenset(label_ids), None, received)])
        if isinstance(result, PostroomError):
            raise result
        return str(result)

    async def append_all(self, messages: Sequence[protocol.NewMessage]) -> Sequence[protocol.AppendResult]:
        """All are uploaded first, and then read back together."""
        folders = await self._session.refresh(self._lane, max_age_s=_FOLDERS_KNOWN_S)
        targets: dict[frozenset[protocol.LabelId], list[FolderState] | CallRefused] = {}
        for labels in {each.label_ids for each in messages}:
            try:
                targets[labels] = [await self._folder(ref, folders) for ref in folder_labels(labels, folders)]
            except CallRefused as error:
                targets[labels] = error

        async def upload(message: protocol.NewMessage) -> Uploaded:
            if isinstance(target := targets[message.label_ids], CallRefused):
                raise target
            first, *others = target
            more = frozenset(label for each in others if (label := each.label_id) is not None)
            async with self._session.connect(self._lane) as connection:
                return await append_message(connection, message, first, more)

        uploaded = await protocol.append_each(messages, upload, _UPLOADS_AT_ONCE)
        results: list[protocol.AppendResult] = [None if isinstance(each, Uploaded) else each for each in uploaded]
        done = {number: each for number, each in enumerate(uploaded) if isinstance(each, Uploaded)}
        try:
            found = await self._appended(list(done.values()))
        except PostroomError as error:
            found = dict.fromkeys(done.values(), after_adding(error))
        for number, each in done.items():
            results[number] = found[each]
        return results

    async def _appended(self, uploaded: Sequence[Uploaded]) -> dict[Uploaded, protocol.AppendResult]:
        """The ids of what was uploaded, as the server gives it back; then its copies in further folders."""
        folders = await self._refresh()
        places = await self._store.places_at([key for each in uploaded if (key := each.key(folders)) is not None])
        unread = [place for place in places if place.message_id is None]
        unnumbered = {each.folder.id for each in uploaded if each.uid is None}
        unread += (
            [place for place in await self._store.unknown() if place.folder_id in unnumbered] if unnumbered else []
        )
        known = await self._session.reader(self._lane).identify(unread, folders) if unread else {}
        known |= {place.key: place.message_id for place in places if place.message_id is not None}
        expected = await self._store.places_of({each.digest for each in uploaded if each.uid is None})
        there = {(place.folder_id, place.message_id) for place in expected}
        lost = MailboxUnavailable("The message was added, and is not found again", may_have_happened=True)
        found: dict[Uploaded, protocol.AppendResult] = {}
        for each in uploaded:
            is_there = (each.folder.id, each.digest) in there
            message_id = known.get(key) if (key := each.key(folders)) is not None else each.digest if is_there else None
            found[each] = message_id or lost
        return found | await self._copied({each: str(id) for each, id in found.items() if each.more and id is not lost})

    async def _copied(self, added: Mapping[Uploaded, protocol.MessageId]) -> dict[Uploaded, protocol.AppendResult]:
        """These, once they are in their further folders too. What one folder refuses concerns only what goes there."""
        by_labels: dict[frozenset[protocol.LabelId], list[Uploaded]] = defaultdict(list)
        for each in added:
            by_labels[each.more].append(each)
        results: dict[Uploaded, protocol.AppendResult] = {**added}
        for labels, mine in by_labels.items():
            ids = list(dict.fromkeys(added[each] for each in mine))
            try:
                await self.modify(ids, protocol.MailboxChange(add=labels))
            except (CallRefused, LabelGone, PermissionMissing) as error:
                results |= dict.fromkeys(mine, after_adding(error))
        return results

    async def _folder(self, ref: FolderRef, folders: Folders) -> FolderState:
        return await self._make_folder(ref) if isinstance(ref, FolderRole) else folders[ref]


async def _one(places: Sequence[Place]) -> AsyncIterator[Sequence[Place]]:
    yield places


def _folders_of(label_id: protocol.LabelId | None, folders: Folders, *, everywhere: bool) -> list[str] | None:
    """The folders to list; None: all. Raises Gone where the mailbox has no such label."""
    flagged = label_id is not None and (label_id == IMPORTANT or label_id.startswith((KEYWORD, GMAIL_LABEL)))
    if label_id is not None and label_id not in SYSTEM_LABELS and not flagged:
        if label_id not in folders:
            raise Gone("label", f"the mailbox has no label {label_id}")
        return [label_id]
    if label_id is not None and label_id in {folder.label_id for folder in folders.values()}:
        return [folder.id for folder in folders.values() if folder.label_id == label_id]
    if everywhere:
        return None
    return [folder.id for folder in folders.values() if folder.role not in _LEFT_OUT]


def _remote(
    message_id: protocol.MessageId,
    places: Sequence[Place],
    folders: Folders,
    *,
    raw: bytes | None = None,
    head: bytes | None = None,
) -> protocol.RemoteMessage:
    """The time is that of the place where it was first received."""
    return protocol.RemoteMessage(
        id=message_id,
        label_ids=labels_of(places, folders),
        received_ms=min(place.received_s for place in places) * 1_000,
        size=places[0].size if raw is None else len(raw),
        headers=() if head is None else _headers(head),
        raw=raw,
    )


def _headers(head: bytes) -> tuple[tuple[str, str], ...]:
    return tuple((name, value.replace("\r", "").replace("\n", "")) for name, value in read_headers(head))


def _pages(entries: Sequence[JournalEntry]) -> list[list[JournalEntry]]:
    """Cut between generations: a cursor is either before a whole one or after it."""
    pages: list[list[JournalEntry]] = []
    for entry in entries:
        is_full = bool(pages) and len(pages[-1]) >= _PAGE_OF_CHANGES
        if not pages or (is_full and entry.generation != pages[-1][-1].generation):
            pages.append([])
        pages[-1].append(entry)
    return pages


def _folded(entries: Sequence[JournalEntry], cursor: protocol.Cursor) -> protocol.ChangePage:
    """What became of each message, whatever happened to it on the way."""
    entries_of: dict[protocol.MessageId, list[JournalEntry]] = defaultdict(list)
    for entry in entries:
        entries_of[entry.message_id].append(entry)
    added: list[protocol.MessageId] = []
    deleted: list[protocol.MessageId] = []
    relabelled: list[protocol.LabelDelta] = []
    for message_id, some in entries_of.items():
        was_there, is_there = some[0].kind is not EntryKind.ADDED, some[-1].kind is not EntryKind.DELETED
        if is_there and not was_there:
            added.append(message_id)
        elif was_there and not is_there:
            deleted.append(message_id)
        elif is_there:
            relabelled.append(_delta(message_id, some))
    return protocol.ChangePage(tuple(added), tuple(deleted), tuple(relabelled), cursor, len(entries))


def _delta(message_id: protocol.MessageId, entries: Sequence[JournalEntry]) -> protocol.LabelDelta:
    first, now = entries[0], entries[-1].now
    before = (first.now - first.add) | first.remove
    return protocol.LabelDelta(message_id, now - before, before - now, now, entries[-1].generation)
