"""What a walk over an IMAP mailbox costs: folders are read on two connections, and a label is listed from the places of
the messages that can have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.places import DatabasePlaces
from postroom.db import Database
from postroom.mailboxes.errors import MailboxThrottled
from postroom.mailboxes.imap.connection import ImapConnection
from postroom.mailboxes.imap.places import KEYWORD, FolderState, Place, digest
from postroom.mailboxes.imap.reading import BytesReader, ReadResult
from tests.support.imap import ImapRig, crlf, imap_rig
from tests.support.mail import letter

FOLDERS = [f"Box{number}" for number in range(9)]


def fill(rig: ImapRig) -> list[str]:
    """A letter in each folder; returns the ids."""
    letters = [crlf(letter(name)) for name in FOLDERS]
    with rig.server.client() as client:
        for name in FOLDERS:
            client.create(name)
    for name, raw in zip(FOLDERS, letters, strict=True):
        rig.server.deliver(raw, name, flags="\\Seen")
    return [digest(raw) for raw in letters]


async def listed(rig: ImapRig, **how: Any) -> list[str]:
    return [each async for page in rig.mailbox.list(max_age_s=60, **how) for each in page.ids]


@pytest.mark.req("IM-4")
async def test_many_folders_are_looked_into_and_read_on_two_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users: dict[str, set[int]] = {"(FLAGS": set(), "BODY.PEEK[]": set()}
    exchange = ImapConnection._exchange

    async def heard(self: ImapConnection, parts: Any, *how: Any) -> Any:
        said = b" ".join(each for each in parts if isinstance(each, bytes)).decode("ascii")
        for word, connections in users.items():
            connections.update([id(self)] if "FETCH" in said and word in said.replace("(UID ", "(") else [])
        return await exchange(self, parts, *how)

    monkeypatch.setattr(ImapConnection, "_exchange", heard)
    async with imap_rig(tmp_path) as rig:
        ids = fill(rig)
        assert set(await listed(rig)) == set(ids)
    assert {word: len(connections) for word, connections in users.items()} == {"(FLAGS": 2, "BODY.PEEK[]": 2}


@pytest.mark.req("IM-4", "IM-6")
async def test_what_one_connection_has_read_is_recorded_when_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = BytesReader._read

    async def refused(
        self: BytesReader, folder: FolderState, places: Sequence[Place], item: bytes
    ) -> Mapping[int, ReadResult]:
        if len(read) >= 4:
            raise MailboxThrottled("fewer calls, please")
        read.append(folder.id)
        return await original(self, folder, places, item)

    async with imap_rig(tmp_path) as rig:
        ids = fill(rig)
        with monkeypatch.context() as patch:
            patch.setattr(BytesReader, "_read", refused)
            with pytest.raises(MailboxThrottled):
                await listed(rig)
        known = {place.folder_id for place in await rig.session.store.places_of(ids)}
        assert known == set(read), "what was read is known, and nothing more was asked for"
        assert set(await listed(rig)) == set(ids)


@pytest.mark.req("IM-4")
async def test_a_label_that_no_folder_makes_is_listed_without_the_rest_of_the_mailbox(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with imap_rig(tmp_path, database) as rig:
        ids = fill(rig)
        starred, marked, unread = (crlf(letter(name)) for name in ("starred", "marked", "unread"))
        rig.server.deliver(starred, "Box1", flags="\\Seen \\Flagged")
        rig.server.deliver(starred, "Box2", flags="\\Seen")
        rig.server.deliver(marked, "Box1", flags="\\Seen per-cent")
        rig.server.deliver(unread, "Box1")
        assert len(await listed(rig)) == len(ids) + 3
        places = 0
        original = DatabasePlaces.listed

        async def counted(self: DatabasePlaces, *args: Any, **how: Any) -> Sequence[Place]:
            nonlocal places
            found = await original(self, *args, **how)
            places += len(found)
            return found

        monkeypatch.setattr(DatabasePlaces, "listed", counted)
        for label, expected in (
            ("SENT", []),
            ("SPAM", []),
            ("UNREAD", [unread]),
            ("STARRED", [starred]),
            (f"{KEYWORD}per-cent", [marked]),
            (f"{KEYWORD}per_cent", []),
        ):
            assert await listed(rig, label_id=label) == [digest(each) for each in expected], label
        assert places == 4, "two places of what is starred, and one each of what is marked and unread"
