"""A mailbox on Dovecot is synced while sync and server are killed, folders are numbered anew and renamed, and other
clients, mbsync among them where it is installed, delete, flag and deliver: in the end the archive has what the server
has, each message once."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from postroom.app import App, open_app
from postroom.archive.service import open_archive
from postroom.audit import SYSTEM
from postroom.db.tables.accounts import history_cursors, mailbox_places
from postroom.mailboxes.imap.places import digest
from postroom.settings import Settings
from postroom.sync.state import find_state
from tests.support.commands import PostroomProcess, command
from tests.support.dovecot import Dovecot, append, dovecot, server_user
from tests.support.imap import crlf
from tests.support.isync import has_mbsync, star_with_mbsync
from tests.support.mail import OWNER, letter
from tests.support.whole_product import LONG_AGO

FIRST = 1_600_000_000
QUICK = {
    "POSTROOM_SYNC__SETTLE_S": "0",
    "POSTROOM_SYNC__RPS_START": "500",
    "POSTROOM_SYNC__RPS_MAX": "500",
}


@dataclass
class TroubledMailbox:
    """Dovecot with a full mailbox, and what happens to it. All chances come from one seed."""

    server: Dovecot
    app: App
    size: int
    dice: random.Random
    folders: list[str] = field(default_factory=list)
    written: int = 0
    watermarks: list[int] = field(default_factory=list)
    pause_s: float = 0.02
    """Before `known` is asked again."""

    def fill(self, folders: int) -> None:
        """Straight into its folders, as a delivery agent does it."""
        self.folders = [f"Box{number}" for number in range(folders - 1)]
        with self.server.client() as client:
            for name in self.folders:
                client.create(name)
        for number in range(self.size):
            folder = ["INBOX", *self.folders][number % folders]
            self._write(folder, self._letter())
        user = server_user()
        if os.getuid() == 0:
            for path in self.server.maildir.rglob("*"):
                os.chown(path, user.pw_uid, user.pw_gid)

    def _letter(self) -> bytes:
        """Every tenth is a twin of the one before it: the same headers, size and date, and other words."""
        self.written += 1
        twin = self.written - 1 if self.written % 10 == 0 else self.written
        text = f"Number {self.written:08d}\n" + "All is well.\n" * (twin % 7)
        return crlf(letter(f"Letter {twin:08d}", text, headers={"Message-ID": f"<{twin:08d}@x.example>"}))

    def _write(self, folder: str, raw: bytes) -> None:
        place = self.server.maildir if folder == "INBOX" else self.server.maildir / f".{folder}"
        path = place / "cur" / f"{FIRST + self.written}.M{self.written}P1.here:2,"
        path.write_bytes(raw)
        when = FIRST + (self.written // 20) * 7_200
        os.utime(path, (when, when))

    def trouble(self, kind: int) -> None:
        folder = self.dice.choice(self.folders)
        match kind % 7:
            case 0:
                self.server.kill()
                self.server.start()
            case 1:
                self.server.reset_uidvalidity(folder)
            case 2:
                renamed = f"Moved{self.dice.randrange(10**6)}"
                with self.server.client() as client:
                    client.rename(folder, renamed)
                self.folders[self.folders.index(folder)] = renamed
            case 3:
                with self.server.client() as client:
                    client.select(folder)
                    client.store("1:3", "+FLAGS", r"(\Deleted)")
                    client.expunge()
            case 4:
                with self.server.client() as client:
                    client.select(folder)
                    client.store("1:*", "+FLAGS", r"(\Seen)")
                    client.copy("1:2", self.dice.choice(self.folders))
            case 5:
                with self.server.client() as client:
                    for _ in range(5):
                        append(client, self._letter(), received=FIRST + self.written)
            case 6 if has_mbsync():
                with tempfile.TemporaryDirectory() as name:
                    assert star_with_mbsync(self.server, Path(name), folder, 3)

    async def known(self) -> int:
        """Counting a large mailbox takes as long as the sync takes for many messages, and less than a tenth of the time
        is spent on it."""
        query, began = select(func.count()).where(mailbox_places.c.message_id.is_not(None)), time.monotonic()
        count = int(await self.app.database.read(lambda tx: tx.execute(query).scalar_one()))
        self.pause_s = max(0.02, 10 * (time.monotonic() - began))
        return count

    async def let_lease_run_out(self) -> None:
        """As if the time had passed for which a killed sync holds the account's changes."""
        past = update(history_cursors).values(lease_expires_at=LONG_AGO)
        await self.app.database.write(lambda tx: tx.execute(past).rowcount)

    async def note_watermark(self, account_id: str) -> None:
        state = await self.app.database.read(lambda tx: find_state(tx, account_id))
        self.watermarks.append(0 if state is None else state.watermark)

    def truth(self) -> dict[str, set[str]]:
        """What the server holds: the folders of each message, by its hash, whether it was read, and whether it is
        starred."""
        found: dict[str, set[str]] = defaultdict(set)
        names = {"": "INBOX", "Sent": "SENT", "Trash": "TRASH", "Junk": "SPAM", "Drafts": "DRAFT"}
        flags: dict[str, set[str]] = defaultdict(set)
        for path in self.server.maildir.rglob("*"):
            if path.is_file() and path.parent.name in ("cur", "new"):
                folder = path.parent.parent.name.removeprefix(".") if path.parent.parent != self.server.maildir else ""
                key = digest(crlf(path.read_bytes()))
                found[key].add(names.get(folder, folder))
                flags[key] |= set(path.name.partition(":2,")[2])
        return {key: labels | _shown(flags[key]) for key, labels in found.items()}

    def archived(self) -> dict[str, set[str]]:
        with open_archive(self.app.settings) as backend, backend.reader() as reader:
            ids = [each.gmail_id for portion in reader.all_ids(OWNER) for each in portion]
            assert len(set(ids)) == len(ids), "a message is in the archive twice"
            found = reader.find_many(OWNER, ids)
        return {key: set(each.labels) for key, each in found.items() if each.deleted_at_source is None}


def _shown(flags: set[str]) -> set[str]:
    """The labels that flags of a Maildir stand for."""
    return ({"STARRED"} if "F" in flags else set()) | (set() if "S" in flags else {"UNREAD"})


@asynccontextmanager
async def troubled_mailbox(home: Path, size: int, folders: int) -> AsyncIterator[tuple[TroubledMailbox, str]]:
    home.mkdir(mode=0o700)
    with dovecot() as server:
        async with open_app(Settings(home=home)) as app:
            box = TroubledMailbox(server, app, size, random.Random(size))
            await asyncio.to_thread(box.fill, folders)
            account, _ = await app.take_in(server.login(), SYSTEM)
            yield box, account.id


SIZES = [int(each) for each in os.environ.get("IMAP_CHAOS_SIZES", "600,20000,100000").split(",")]
"""A smaller machine may ask for less, such as IMAP_CHAOS_SIZES=4000."""


@pytest.mark.req("IM-3", "IM-7")
@pytest.mark.chaos
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(("size", "rounds"), [(size, max(4, min(size // 800, 40))) for size in SIZES])
async def test_whatever_happens_the_archive_ends_as_the_mailbox(tmp_path: Path, size: int, rounds: int) -> None:
    home = tmp_path / "home"
    async with troubled_mailbox(home, size, folders=40) as (box, account_id):
        for number in range(rounds):
            sync = PostroomProcess("sync", "run", "--once", home=home, variables=QUICK)
            wanted = await box.known() + size // rounds
            await sync.start()
            try:
                while sync.is_running and await box.known() < wanted:
                    await asyncio.sleep(box.pause_s)
                for kind in (2 * number, 2 * number + 1):
                    await asyncio.to_thread(box.trouble, kind)
            finally:
                await sync.kill()
            await box.let_lease_run_out()
            await box.note_watermark(account_id)
        for _ in range(2):  # the second finds what happened while the first walked
            done = await command(home, "sync", "run", "--once", **QUICK)
            assert done.code == 0, done.stderr
            await box.note_watermark(account_id)
        truth, archived = box.truth(), box.archived()
        assert archived.keys() == truth.keys()
        assert archived == truth
        assert box.watermarks == sorted(box.watermarks)
        verified = await command(home, "verify", "--against-source", **QUICK)
        assert verified.code == 0, verified.stdout + verified.stderr
