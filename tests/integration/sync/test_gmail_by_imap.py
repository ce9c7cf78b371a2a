"""Gmail by its own IMAP server has the ids and labels of its API, so both are one account (IM-6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from postroom.accounts.account import Account, NewAccount, Provider, add_account
from postroom.archive.service import AccountStore
from postroom.db import Database, connect
from postroom.domain.clock import SystemClock
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.imap.mailbox import ImapMailbox
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Got, Mailbox, MailboxChange
from postroom.sim.gmail.server import running_sim
from postroom.sync.engine import build_engine
from tests.support.archives import opened_store
from tests.support.databases import install
from tests.support.gmail_imap import GmailImap, GmailMessage, gmail_imap
from tests.support.gmail_sim import client_of
from tests.support.imap import crlf, session_of
from tests.support.mail import OWNER, letter, mailbox
from tests.support.sync import settings_with

CLOCK = SystemClock()
IDS = (0x18F0AA0000000001, 0x18F0AA0000000002, 0x18F0AA0000000003)


def text(number: int) -> bytes:
    return crlf(letter(f"Letter {number}", headers={"Message-ID": f"<{number}@x.example>"}))


def three() -> list[GmailMessage]:
    labels = ({r"\Inbox", r"\Important", "Work"}, {"Hidden one"}, {r"\Sent", r"\Starred"})
    return [GmailMessage(number, text(at), set(labels[at])) for at, number in enumerate(IDS)]


@dataclass
class GmailByImap:
    server: GmailImap
    database: Database
    account: Account
    mailbox: ImapMailbox

    async def names(self, message_id: str) -> set[str]:
        names = {label.id: label.name for label in await self.mailbox.labels()}
        return {names[each] for each in (await self.mailbox.get(message_id)).label_ids}


@asynccontextmanager
async def by_imap(database: Database, messages: list[GmailMessage]) -> AsyncIterator[GmailByImap]:
    async with gmail_imap(messages) as server:
        new = NewAccount(OWNER, str(server.login().address), provider=Provider.IMAP)
        account = await database.write(lambda tx: add_account(tx, new, CLOCK.now()))
        session = session_of(server.login(), database, account, CLOCK)
        try:
            yield GmailByImap(server, database, account, ImapMailbox(session, PriorityLane.SYNC))
        finally:
            await session.close()


async def ids_of(box: Mailbox, **how: object) -> list[str]:
    return [each async for page in box.list(**how) for each in page.ids]  # type: ignore[arg-type]


@pytest.mark.req("IM-6")
async def test_ids_and_labels_are_those_of_the_api_and_listing_reads_no_message(database: Database) -> None:
    async with by_imap(database, three()) as gmail:
        first, second, third = (f"{number:x}" for number in IDS)
        assert set(await ids_of(gmail.mailbox)) == {first, second, third}
        assert not any("BODY.PEEK[]" in words for words in gmail.server.heard)
        results = await gmail.mailbox.fetch([first, second, third])
        assert [each.message.raw for each in results if isinstance(each, Got)] == [text(at) for at in range(3)]
        assert await gmail.names(first) == {"INBOX", "IMPORTANT", "Work", "UNREAD"}
        assert await gmail.names(second) == {"Hidden one", "UNREAD"}, "a label that is hidden from IMAP"
        assert await gmail.names(third) == {"SENT", "UNREAD"}


@pytest.mark.req("IM-6")
async def test_changes_of_labels_are_followed_and_made(database: Database) -> None:
    async with by_imap(database, three()) as gmail:
        first, second, _ = (f"{number:x}" for number in IDS)
        await ids_of(gmail.mailbox)
        since = (await gmail.mailbox.identity()).cursor
        gmail.server.relabel(0, "Work")
        gmail.server.relabel(1, "Hidden one", r"\Inbox", r"\Important")
        gmail.server.add(GmailMessage(0x18F0AA0000000009, text(9), {r"\Inbox"}))
        [page] = [page async for page in gmail.mailbox.changes(since)]
        assert (page.added, page.deleted) == (("18f0aa0000000009",), ())
        changed = {each.id: (each.add, each.remove) for each in page.relabelled}
        assert changed[first] == (frozenset(), frozenset({"INBOX", "IMPORTANT"}))
        assert changed[second] == (frozenset({"INBOX", "IMPORTANT"}), frozenset())
        await gmail.mailbox.modify([first], MailboxChange(add=frozenset({"IMPORTANT"})))
        assert r"\Important" in gmail.server.messages[0].labels
        assert "IMPORTANT" in await gmail.names(first)
        await gmail.mailbox.modify([first], MailboxChange(remove=frozenset({"IMPORTANT"})))
        assert gmail.server.messages[0].labels == {"Work"}


@pytest.mark.req("IM-6")
async def test_gmail_searches_itself(database: Database) -> None:
    async with by_imap(database, three()) as gmail:
        assert await ids_of(gmail.mailbox, query="Letter 1") == [f"{IDS[1]:x}"]
        assert any('X-GM-RAW "Letter 1"' in words for words in gmail.server.heard)


async def sync(database: Database, account: Account, box: Mailbox, store: AccountStore) -> None:
    await build_engine(database, account, box, store, settings_with(settle_s=0, extend_s=0), CLOCK).run(once=True)


@pytest.mark.req("IM-6")
async def test_what_was_synced_by_the_api_is_known_when_it_is_synced_by_imap(
    tmp_path: Path, database: Database
) -> None:
    """The same archive, by one way and then by the other: each message is there once, and none is read again."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(tmp_path / "archive", OWNER, purpose="a test"))
        sim = await stack.enter_async_context(running_sim(mailbox(5)))
        client = await stack.enter_async_context(client_of(sim))
        new = NewAccount(OWNER, sim.url)
        account = await database.write(lambda tx: add_account(tx, new, CLOCK.now()))
        await sync(database, account, GmailMailbox(client), store)
        truth = {str(each["id"]) for each in sim.control.truth(hashes=False)}
        raws = {each: (await GmailMailbox(client).get(each)).raw or b"" for each in truth}
        same = [GmailMessage(int(each, 16), raws[each], {r"\Inbox"}) for each in sorted(truth)]
        other = await connect(f"sqlite:///{install(tmp_path / 'other') / 'postroom.db'}")
        stack.push_async_callback(other.close)
        gmail = await stack.enter_async_context(by_imap(other, same))
        gmail.server.add(GmailMessage(0x18F0AA0000000009, text(9), {r"\Inbox"}))
        await sync(other, gmail.account, gmail.mailbox, store)
        with store.backend.reader() as reader:
            ids = [each.gmail_id for portion in reader.all_ids(OWNER) for each in portion]
        assert sorted(ids, key=str) == sorted([*truth, "18f0aa0000000009"])
        read = [words for words in gmail.server.heard if "BODY.PEEK[]" in words]
        assert len(read) == 1, "only what is new"
