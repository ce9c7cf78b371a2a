"""An IMAP mailbox on a real server is archived whole, whatever happens to its folders and to the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom.archive.service import AccountStore
from postroom.db import Database
from postroom.domain.errors import Retryable
from postroom.mailboxes.errors import MailboxUnavailable
from postroom.mailboxes.imap.connection import ImapConnection
from postroom.mailboxes.imap.mailbox import ImapMailbox
from postroom.mailboxes.imap.places import digest
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Span
from postroom.sync.engine import SyncEngine, build_engine
from postroom.sync.labels import SourceCheck
from postroom.sync.state import get_state
from tests.support.archives import opened_store
from tests.support.dovecot import append
from tests.support.imap import BARE, ImapRig, ServerRig, crlf, imap_rig, rig_on, session_of
from tests.support.imap_servers import pymap
from tests.support.mail import OWNER, letter
from tests.support.sync import settings_with

START = 1_750_000_000
DAY = 86_400


def numbered(number: int, body: str = "How are you?\n") -> bytes:
    return crlf(letter(f"Letter {number}", body, headers={"Message-ID": f"<{number}@x.example>"}))


@dataclass(frozen=True)
class ImapSync:
    rig: ImapRig
    store: AccountStore

    @property
    def mailbox(self) -> ImapMailbox:
        return self.rig.mailbox.at(PriorityLane.SYNC)

    def engine(self, **settings: object) -> SyncEngine:
        chosen = settings_with(settle_s=0, extend_s=0, **settings)
        return build_engine(self.rig.database, self.rig.account, self.mailbox, self.store, chosen, self.rig.clock)

    async def sync(self) -> SyncEngine:
        engine = self.engine()
        await engine.run(once=True)
        return engine

    def archived(self) -> dict[str, set[str]]:
        """The labels of what the archive takes to be at the source, by hash."""
        with self.store.backend.reader() as reader:
            ids = [each.gmail_id for portion in reader.all_ids(OWNER) for each in portion]
            assert len(set(ids)) == len(ids), "a message is in the archive twice"
            found = reader.find_many(OWNER, ids)
        return {key: set(each.labels) for key, each in found.items() if each.deleted_at_source is None}

    async def gaps(self) -> int:
        check = SourceCheck(self.rig.database, self.rig.account, self.mailbox, self.store.backend)
        report = await check.run()
        return len(report.gaps) + len(report.gone)

    async def watermark(self) -> int:
        account_id = self.rig.account.id
        return (await self.rig.database.read(lambda tx: get_state(tx, account_id))).watermark


@contextlib.asynccontextmanager
async def imap_sync(folder: Path, database: Database | None = None, capability: str = "") -> AsyncIterator[ImapSync]:
    async with (
        imap_rig(folder, database, capability=capability) as rig,
        opened_store(folder / "archive", OWNER, purpose="a test") as store,
    ):
        yield ImapSync(rig, store)


def fill(rig: ImapRig, count: int = 30) -> list[bytes]:
    letters = [numbered(number) for number in range(count)]
    with rig.server.client() as client:
        for name in ("Work", "Work/Offers", "Entw&APw-rfe"):
            client.create(f'"{name}"')
        for number, raw in enumerate(letters):
            folder = ("INBOX", "Work", "Sent", "Work/Offers", "Entw&APw-rfe")[number % 5]
            append(client, raw, folder, received=START + number * DAY)
    return letters


@pytest.mark.req("IM-3", "IM-5")
@pytest.mark.parametrize("capability", ["", BARE])
async def test_everything_is_archived_and_a_message_in_three_folders_once(
    tmp_path: Path, database: Database, capability: str
) -> None:
    async with imap_sync(tmp_path, database, capability) as sync:
        letters = fill(sync.rig)
        for folder in ("Work", "Sent"):
            sync.rig.server.deliver(letters[0], folder, received=START)
        await sync.sync()
        found = sync.archived()
        assert found.keys() == {digest(each) for each in letters}
        assert found[digest(letters[0])] == {"INBOX", "Work", "SENT", "UNREAD"}
        assert found[digest(letters[4])] == {"Entwürfe", "UNREAD"}
        assert await sync.watermark() > START + 30 * DAY
        assert await sync.gaps() == 0


@pytest.mark.req("IM-4")
@pytest.mark.parametrize("capability", ["", BARE])
async def test_what_another_client_does_is_followed(tmp_path: Path, capability: str) -> None:
    async with imap_sync(tmp_path, capability=capability) as sync:
        letters = fill(sync.rig, 15)
        await sync.sync()
        with sync.rig.server.client() as client:
            client.select("INBOX")
            client.store("1", "+FLAGS", r"(\Seen \Flagged todo)")  # letter 0
            client.copy("2", "Work")  # letter 5
            client.store("2:3", "+FLAGS", r"(\Deleted)")
            client.expunge()  # 5 lies in Work now, 10 is gone
            append(client, numbered(99), "Junk")
        await sync.sync()
        found = sync.archived()
        assert found[digest(letters[0])] == {"INBOX", "STARRED", "Keyword/todo"}
        assert found[digest(letters[5])] == {"Work", "UNREAD"}
        assert digest(letters[10]) not in found
        assert found[digest(numbered(99))] == {"SPAM", "UNREAD"}
        assert len(found) == 15
        assert await sync.gaps() == 0
        sync.rig.server.deliver(letters[10])
        await sync.sync()
        assert digest(letters[10]) in sync.archived(), "what was deleted may come back"


@pytest.mark.req("IM-3")
async def test_a_uidvalidity_reset_loses_and_doubles_nothing_and_fetches_only_the_ambiguous(tmp_path: Path) -> None:
    async with imap_sync(tmp_path) as sync:
        letters = fill(sync.rig, 15)
        twins = [crlf(letter("Twin", body, headers={"Message-ID": "<twin@x.example>"})) for body in ("one\n", "two\n")]
        for raw in twins:
            sync.rig.server.deliver(raw, received=START)
        await sync.sync()
        before = sync.archived()
        old = {each.wire: each.uidvalidity for each in (await sync.rig.session.store.folders()).values()}
        sync.rig.server.reset_uidvalidity()
        mailbox = sync.mailbox
        since = (await sync.rig.session.store.journal()).cursor
        with counted_reads(sync.rig) as read:
            await until_connected(mailbox)
            pages = [page async for page in mailbox.changes(since)]
        new = {each.wire: each.uidvalidity for each in (await sync.rig.session.store.folders()).values()}
        assert new["INBOX"] != old["INBOX"]
        assert [(page.added, page.deleted, page.relabelled) for page in pages] == [((), (), ())]
        assert read == [2], "only the two that share Message-ID, size and date"
        await sync.sync()
        assert sync.archived() == before
        assert digest(letters[0]) in before


async def until_connected(mailbox: ImapMailbox) -> None:
    """The connections of before are gone with the server; each that is tried says so once."""
    for _ in range(4):
        with contextlib.suppress(MailboxUnavailable):
            await mailbox.identity()
            return


@contextlib.contextmanager
def counted_reads(rig: ServerRig[Any]) -> Iterator[list[int]]:
    """How many messages' bytes are read, call by call."""
    read: list[int] = []
    make = rig.session.reader

    def reader(lane: PriorityLane) -> object:
        made = make(lane)
        inner = made.identify

        async def identify(places: list[object], folders: object) -> object:
            read.append(len(places))
            return await inner(places, folders)  # type: ignore[arg-type]

        made.identify = identify  # type: ignore[method-assign,assignment]
        return made

    rig.session.reader = reader  # type: ignore[method-assign,assignment]
    try:
        yield read
    finally:
        rig.session.reader = make  # type: ignore[method-assign]


@pytest.mark.req("IM-3")
async def test_a_renamed_folder_is_a_renamed_label_and_nothing_is_read_again(tmp_path: Path) -> None:
    async with imap_sync(tmp_path) as sync:
        letters = fill(sync.rig, 10)
        await sync.sync()
        with sync.rig.server.client() as client:
            client.rename('"Work"', '"Job"')
        with counted_reads(sync.rig) as read:
            await sync.sync()
        found = sync.archived()
        assert read == []
        assert found[digest(letters[1])] == {"Job", "UNREAD"}
        assert found[digest(letters[3])] == {"Job/Offers", "UNREAD"}
        assert len(found) == 10


@pytest.mark.req("IM-3", "IM-7")
async def test_a_server_that_is_killed_during_a_sync_costs_nothing_but_time(tmp_path: Path) -> None:
    async with imap_sync(tmp_path) as sync:
        letters = fill(sync.rig, 40)
        killed = 0
        connect = sync.rig.session._pool.use

        @contextlib.asynccontextmanager
        async def sometimes_killing(folder: str | None = None) -> AsyncIterator[object]:
            nonlocal killed
            async with connect(folder) as connection:
                yield connection
            uses.append(folder)
            if killed < 3 and len(uses) % 5 == 0:
                killed += 1
                sync.rig.server.kill()
                sync.rig.server.start()

        uses: list[str | None] = []
        sync.rig.session._pool.use = sometimes_killing  # type: ignore[method-assign,assignment]
        for _ in range(20):  # how often one sync uses a connection depends on what waits for the same answer
            with contextlib.suppress(Retryable):
                await sync.sync()
            if killed == 3:
                break
        assert killed == 3
        await sync.sync()
        assert sync.archived().keys() == {digest(each) for each in letters}
        assert await sync.gaps() == 0


@pytest.mark.req("IM-3")
async def test_another_process_takes_up_where_one_stopped(tmp_path: Path) -> None:
    async with imap_sync(tmp_path) as sync:
        fill(sync.rig, 10)
        await sync.sync()
        again = session_of(sync.rig.server.login(), sync.rig.database, sync.rig.account, sync.rig.clock)
        try:
            other = ImapMailbox(again)
            cursor = (await sync.mailbox.identity()).cursor
            sync.rig.server.deliver(numbered(77))
            mine = [page async for page in sync.mailbox.changes(cursor)]
            theirs = [page async for page in other.changes(cursor)]
            assert [page.added for page in mine] == [page.added for page in theirs] == [(digest(numbered(77)),)]
        finally:
            await again.close()


@pytest.mark.req("IM-3")
async def test_a_server_with_object_ids_names_what_a_reset_numbers_anew(tmp_path: Path) -> None:
    """pymap gives ids that stay (RFC 8474); twins that share Message-ID, size and date are told apart by them."""
    twins = [crlf(letter("Twin", body, headers={"Message-ID": "<twin@x.example>"})) for body in ("one\n", "two\n")]
    letters = [*twins, *(numbered(number) for number in range(5))]
    with pymap() as server:
        async with rig_on(server, tmp_path) as rig:

            def fill_anew() -> None:
                with server.client() as client:
                    client.create("Work")
                    for raw in letters:
                        append(client, raw, "Work", received=START)

            fill_anew()
            ids = {each async for page in rig.mailbox.list() for each in page.ids}
            assert ids == {digest(each) for each in letters}
            since = (await rig.mailbox.identity()).cursor
            old = {each.wire: each.uidvalidity for each in (await rig.session.store.folders()).values()}
            with server.client() as client:
                client.delete("Work")
            fill_anew()
            with counted_reads(rig) as read:
                pages = [page async for page in rig.mailbox.changes(since)]
            new = {each.wire: each.uidvalidity for each in (await rig.session.store.folders()).values()}
            assert new["Work"] != old["Work"]
            assert [(page.added, page.deleted, page.relabelled) for page in pages] == [((), (), ())]
            assert read == []
            places = await rig.session.store.places_of(ids)
            assert {place.is_provisional for place in places} == {True}
            assert await rig.mailbox.confirm(ids) == frozenset()
            assert {place.is_provisional for place in await rig.session.store.places_of(ids)} == {False}


@contextlib.contextmanager
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The commands that the server gets meanwhile."""
    commands: list[bytes] = []
    exchange, exchange_all = ImapConnection._exchange, ImapConnection._exchange_all

    async def one(self: ImapConnection, parts: Any, *how: Any) -> Any:
        commands.append(b" ".join(each for each in parts if isinstance(each, bytes)))
        return await exchange(self, parts, *how)

    async def several(self: ImapConnection, lines: Any) -> Any:
        commands.extend(lines)
        return await exchange_all(self, lines)

    with monkeypatch.context() as patch:
        patch.setattr(ImapConnection, "_exchange", one)
        patch.setattr(ImapConnection, "_exchange_all", several)
        yield commands


def _with(commands: list[bytes], word: bytes) -> int:
    return sum(word in each for each in commands)


@pytest.mark.req("IM-3", "IM-4")
@pytest.mark.parametrize("capability", ["", BARE])
async def test_a_walk_looks_at_the_folders_a_few_times_and_reads_them_in_portions_however_many_slices_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: str
) -> None:
    async with imap_sync(tmp_path, capability=capability) as sync:
        letters = fill(sync.rig, 40)
        with heard(monkeypatch) as commands:
            await sync.engine(granularity="week").run(once=True)
        assert sync.archived().keys() == {digest(each) for each in letters}
        assert _with(commands, b"BODY.PEEK[]") < 15, "40 letters in 5 folders, of 6 weeks"
        assert _with(commands, b"LIST ") < 15, "there are more than 90 slices"
        folders = len(await sync.rig.session.store.folders())
        assert _with(commands, b"EXAMINE") < 6 * folders


@pytest.mark.req("IM-4")
async def test_a_sync_that_finds_nothing_new_opens_no_folder_where_the_server_counts_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with imap_sync(tmp_path) as sync:
        fill(sync.rig, 15)
        await sync.sync()
        with heard(monkeypatch) as commands:
            await sync.sync()
        assert _with(commands, b"EXAMINE") == _with(commands, b"FETCH") == 0, commands


@pytest.mark.req("IM-4")
async def test_one_letter_more_is_asked_for_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with imap_sync(tmp_path) as sync:
        fill(sync.rig, 15)
        await sync.sync()
        sync.rig.server.deliver(numbered(77))
        with heard(monkeypatch) as commands:
            await sync.sync()
        assert digest(numbered(77)) in sync.archived()
        assert _with(commands, b"EXAMINE") <= 2, commands
        assert not [each for each in commands if b"FETCH 1:*" in each]


@pytest.mark.req("IM-8")
async def test_a_message_id_is_searched_for_by_the_server_only_where_it_was_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with imap_sync(tmp_path) as sync:
        fill(sync.rig, 10)
        mailbox = sync.rig.mailbox

        async def found(number: int) -> list[str]:
            return [each async for page in mailbox.list(query=f"rfc822msgid:{number}@x.example") for each in page.ids]

        with heard(monkeypatch) as commands:
            assert await found(3) == [digest(numbered(3))]
            assert _with(commands, b"SEARCH") > 0
        await sync.sync()
        with heard(monkeypatch) as commands:
            assert await found(3) == [digest(numbered(3))]
            assert await found(99) == []
            assert _with(commands, b"SEARCH") == 0, commands


@pytest.mark.req("IM-3")
async def test_who_waits_for_a_look_shares_the_next_one_and_never_takes_an_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with imap_rig(tmp_path) as rig:
        await rig.mailbox.identity()
        with heard(monkeypatch) as commands:
            await asyncio.gather(*(rig.mailbox.identity() for _ in range(10)))
            assert _with(commands, b"LIST ") == 2, "the first began before the others asked"
        rig.server.deliver(numbered(1))
        assert [each async for page in rig.mailbox.list() for each in page.ids] == [digest(numbered(1))]


@pytest.mark.req("IM-3")
async def test_a_folder_numbered_anew_within_a_walk_is_looked_into_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing of a slice takes a look that is some seconds old, in which the folder had another numbering."""
    async with imap_sync(tmp_path) as sync:
        letters = fill(sync.rig, 10)
        await sync.mailbox.identity()
        with sync.rig.server.client() as client:
            client.delete("Work/Offers")
            client.create("Work/Offers")
            for raw in letters[3::5]:
                append(client, raw, "Work/Offers", received=START)
        span, ids = Span(0, None), set[str]()
        for _ in range(3):
            with contextlib.suppress(MailboxUnavailable):
                ids = {each async for page in sync.mailbox.list(span, max_age_s=60) for each in page.ids}
                break
        assert ids <= {digest(each) for each in letters}, "none got the id of an unreadable message"
        await sync.sync()
        assert sync.archived().keys() == {digest(each) for each in letters}
