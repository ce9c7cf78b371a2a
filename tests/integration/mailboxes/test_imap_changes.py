"""What changed in an IMAP mailbox is reported once and never lost, whoever else looks into it meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from postroom.accounts.account import NewAccount, Provider, add_account
from postroom.accounts.places import DatabasePlaces
from postroom.db import Database
from postroom.domain.clock import SystemClock
from postroom.mailboxes.errors import MailboxUnavailable
from postroom.mailboxes.imap import session as sessions
from postroom.mailboxes.imap.changing import Step, StepKind, plan_change
from postroom.mailboxes.imap.connection import ImapConnection, open_connection
from postroom.mailboxes.imap.folders import FolderListing, is_nonexistent, list_folders, open_folder
from postroom.mailboxes.imap.mailbox import ImapMailbox
from postroom.mailboxes.imap.places import (
    EntryKind,
    FolderChange,
    FolderRole,
    Folders,
    FolderState,
    IdentifiedPlace,
    Place,
)
from postroom.mailboxes.imap.reading import BytesReader
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import MailboxChange, Move
from tests.integration.mailboxes.test_imap_hostile import PATIENCE, Answers, ids_of, mailbox_of, polite, scripted
from tests.support.imap import crlf, imap_rig
from tests.support.mail import letter


def numbered(number: int) -> bytes:
    return crlf(letter(f"Letter {number}", "hello\n", headers={"Message-ID": f"<{number}@x.example>"}))


async def added_since(mailbox: ImapMailbox, cursor: str) -> tuple[list[str], str]:
    added: list[str] = []
    async for page in mailbox.changes(cursor):
        added += page.added
        assert page.cursor is not None
        cursor = page.cursor
    return added, cursor


@pytest.mark.req("IM-3")
async def test_mail_that_another_lane_sees_while_bytes_are_read_is_reported_later(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with imap_rig(tmp_path, database) as rig:
        live, other = (rig.mailbox.at(lane) for lane in (PriorityLane.LIVE, PriorityLane.SYNC))
        cursor = (await live.identity()).cursor
        identify, late = BytesReader.identify, list[str]()

        async def interrupted(
            reader: BytesReader, places: Sequence[Place], folders: Folders
        ) -> dict[tuple[str, int, int], str]:
            known = await identify(reader, places, folders)
            if not late:
                late.append(rig.deliver(numbered(2)))
                await other.identity()
            return known

        monkeypatch.setattr(BytesReader, "identify", interrupted)
        first = rig.deliver(numbered(1))
        added, cursor = await added_since(live, cursor)
        assert added == [first]
        added, cursor = await added_since(live, cursor)
        assert added == late
        assert await added_since(live, cursor) == ([], cursor)


@pytest.mark.req("IM-3", "IM-7")
async def test_mail_whose_bytes_an_answer_lacks_is_asked_for_until_it_is_given(tmp_path: Path) -> None:
    said: dict[str, bytes] = {
        "STATUS": b"* STATUS INBOX (MESSAGES 0 UIDNEXT 1 UIDVALIDITY 7 HIGHESTMODSEQ 4)\r\n",
        "EXAMINE": b"* 0 EXISTS\r\n* OK [UIDVALIDITY 7] ok\r\n* OK [UIDNEXT 1] ok\r\n* OK [HIGHESTMODSEQ 4] ok\r\n",
    }
    gone = [False]

    def answers(tag: str, words: str) -> bytes | None:
        is_asked_for = "BODY.PEEK[]" in words or "(UID FLAGS)" in words or "UID SEARCH" in words
        return f"{tag} OK nothing\r\n".encode() if gone[0] and is_asked_for else polite(**said)(tag, words)

    async with scripted(answers) as server, mailbox_of(server, tmp_path) as mailbox:
        cursor = (await mailbox.identity()).cursor
        said.clear()
        gone[0] = True
        assert (await added_since(mailbox, cursor))[0] == []
        added, after = await added_since(mailbox, cursor)
        assert added == []
        gone[0] = False
        added, _ = await added_since(mailbox, after)
        assert sorted(added) == sorted(await ids_of(mailbox))
        assert len(added) == 2


@pytest.mark.req("IM-7")
async def test_a_message_that_is_listed_and_never_given_holds_up_no_other(tmp_path: Path) -> None:
    answers: Answers = polite(BODY=b"* 1 FETCH (UID 1 BODY[] {4}\r\na: b)\r\n")
    async with scripted(answers) as server, mailbox_of(server, tmp_path) as mailbox:
        ids = await ids_of(mailbox)
        assert sorted(each.startswith("unread-") for each in ids) == [False, True]
        assert sorted(type(each).__name__ for each in await mailbox.fetch(ids)) == ["Failed", "Got"]


@pytest.mark.req("IM-3")
async def test_flags_that_change_between_the_first_record_of_a_place_and_the_look_are_kept(database: Database) -> None:
    new = NewAccount("owner@x.example", "imap://127.0.0.1:143", provider=Provider.IMAP)
    account = await database.write(lambda tx: add_account(tx, new, SystemClock().now()))
    store, folder = DatabasePlaces(database, account.id), FolderState("folder-1", "INBOX", role=FolderRole.INBOX)
    await store.put_folders([folder], ())
    coming = [Place(folder.id, 7, uid, frozenset(), 100, 10) for uid in (1, 2)]
    after = replace(folder, uidvalidity=7, uidnext=3, modseq=5, messages=2)
    await store.expect(FolderChange(folder, after, coming))
    await store.identify([IdentifiedPlace(coming[0], "a" * 64)])
    begin = (await store.journal()).generation

    read = [place._replace(flags=frozenset({"\\seen"})) for place in coming]
    assert await store.apply([FolderChange(folder, replace(after, modseq=6), read)])
    assert {place.uid: place.flags for place in await store.places(folder.id)} == {1: {"\\seen"}, 2: {"\\seen"}}
    [entry] = await store.entries(begin)
    assert (entry.kind, entry.message_id, entry.remove) == (EntryKind.RELABELLED, "a" * 64, frozenset({"UNREAD"}))


@pytest.mark.req("IM-3", "IM-7")
async def test_only_a_folder_that_the_server_says_is_gone_has_lost_its_mail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with imap_rig(tmp_path) as rig:
        work = await rig.mailbox.create_label("Work")
        rig.server.deliver(numbered(1), "Work")
        since = (await rig.mailbox.identity()).cursor
        assert len(await ids_of(rig.mailbox)) == 1
        in_full = list_folders

        async def without_work(connection: ImapConnection) -> FolderListing:
            listing = await in_full(connection)
            return replace(listing, folders={key: each for key, each in listing.folders.items() if key != "Work"})

        with monkeypatch.context() as patched:
            patched.setattr(sessions, "list_folders", without_work)
            pages = [page async for page in rig.mailbox.changes(since)]
            assert [page.deleted for page in pages] == [()]
        assert work.id in {label.id for label in await rig.mailbox.labels()}
        with rig.server.client() as client:
            client.delete("Work")
        with suppress(MailboxUnavailable):  # the server ends connections that have it selected
            await rig.mailbox.identity()
        assert [len(page.deleted) async for page in rig.mailbox.changes(pages[-1].cursor or "")] == [1]
        assert work.id not in {label.id for label in await rig.mailbox.labels()}


@pytest.mark.req("IM-7")
@pytest.mark.parametrize(
    ("status", "listed", "is_gone"),
    [
        (b"TAG NO [NONEXISTENT] no such folder\r\n", b"", True),
        (b"TAG NO no such folder\r\n", b"", True),
        (b"TAG NO no such folder\r\n", b'* LIST () "/" INBOX\r\n', False),
        (b"TAG NO [NOPERM] not yours\r\n", b"", False),
        (b"TAG NO [OVERQUOTA] full\r\n", b"", False),
        (b"* STATUS INBOX (MESSAGES 2)\r\n", b"", False),
    ],
)
async def test_a_refusal_that_says_something_else_does_not_make_a_folder_gone(
    status: bytes, listed: bytes, is_gone: bool
) -> None:
    async with scripted(polite(STATUS=status, LIST=listed)) as server:
        connection = await open_connection(server.login(), PATIENCE)
        assert await is_nonexistent(connection, "INBOX") is is_gone
        await connection.close()


@pytest.mark.req("IM-5")
def test_mail_that_lies_in_the_view_of_all_mail_alone_can_be_moved_to_the_trash() -> None:
    folders = {"a": FolderState("a", "All", role=FolderRole.ALL), "t": FolderState("t", "Trash", role=FolderRole.TRASH)}
    viewed, trashed = (Place(each, 7, 1, frozenset(), 0, 10, "m" * 64) for each in folders)
    change = MailboxChange(move=Move.TRASH)
    assert plan_change([viewed], folders, change) == [Step(StepKind.COPY, viewed, FolderRole.TRASH)]
    assert plan_change([viewed, trashed], folders, change) == []


@pytest.mark.req("IM-3")
async def test_mail_that_old_connections_do_not_show_yet_is_read_all_the_same(tmp_path: Path) -> None:
    """Three connections have the inbox selected from before a message came; any of them may be asked for it."""
    async with imap_rig(tmp_path) as rig:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                connection = await stack.enter_async_context(rig.session.connect(PriorityLane.USER_ACTION))
                await open_folder(connection, "INBOX")
        expected = rig.deliver(b"Subject: news\r\n\r\nIt came after they had looked.\r\n")
        assert [each async for page in rig.mailbox.list() for each in page.ids] == [expected]


@pytest.mark.req("IM-4")
async def test_places_come_in_the_same_order_however_they_are_found(database: Database) -> None:
    new = NewAccount("owner@x.example", "imap://127.0.0.1:143", provider=Provider.IMAP)
    account = await database.write(lambda tx: add_account(tx, new, SystemClock().now()))
    store = DatabasePlaces(database, account.id)
    folders = [FolderState(f"folder-{number}", f"Box{number}") for number in range(3)]
    await store.put_folders(folders, ())
    for number, folder in enumerate(folders):
        coming = [Place(folder.id, 7, uid, frozenset(), 100 * (uid % 4) + number, 10) for uid in range(1, 9)]
        assert await store.apply([FolderChange(folder, replace(folder, uidvalidity=7, uidnext=9, messages=8), coming)])
    whole = await store.listed(None, None)
    assert [place.received_s for place in whole] == sorted((place.received_s for place in whole), reverse=True)
    for chosen in (["folder-1"], ["folder-0", "folder-2"]):
        expected = [place for place in whole if place.folder_id in chosen]
        assert await store.listed(None, chosen) == expected
        assert await store.listed(None, chosen, most=len(whole)) == expected
        following = await store.following(chosen, 200, 100)
        assert sorted(following, key=lambda place: (place.received_s, place.uid)) == following
        assert {place.key for place in following} == {place.key for place in expected if place.received_s >= 200}
        assert await store.following(chosen, 200, 3) == following[:3]
    await store.identify([IdentifiedPlace(place, f"{place.uid % 2:064d}") for place in whole])
    found = await store.places_of([f"{number:064d}" for number in range(2)])
    assert [(place.received_s, place.folder_id) for place in found] == sorted(
        (place.received_s, place.folder_id) for place in found
    )
    assert len(found) == len(whole)
    assert not await store.following(["folder-1"], 0, 100), "all of it was read"
