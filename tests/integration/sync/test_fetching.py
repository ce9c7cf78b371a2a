"""From ids to mail on disk: every id gets an answer, and only messages are blamed for themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroom.archive.importing import preparation
from postroom.archive.messages import IncomingMail
from postroom.archive.preparing import PreparedMail
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.domain.errors import Fatal, Retryable
from postroom.mailboxes.errors import MailboxUnavailable
from postroom.mailboxes.labels import LabelNames
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync.fetch import MailFetcher
from tests.support.archives import generated_mail
from tests.support.sync import SyncRig, in_virtual_time, letters

SOURCE = letters(60)
IDS = [SOURCE.summary(index).id for index in range(60)]


def fetcher(world: SyncRig) -> MailFetcher:
    return MailFetcher(world.mailbox, world.store, LabelNames(world.mailbox))


def test_why_a_message_cannot_be_stored_is_told_without_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: SyncRig) -> None:
        def prepare(mail: IncomingMail) -> PreparedMail:
            raise ValueError(f"not a number: {mail.raw!r}")

        monkeypatch.setattr(preparation, "prepare", prepare)
        [error] = (await fetcher(world).fetch(IDS[:1])).failed.values()
        assert error.message == "It could not be stored: ValueError"

    in_virtual_time(SOURCE, tmp_path, story)


def test_every_id_gets_one_answer(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        await fetcher(world).fetch(IDS[:5])
        await world.client.delete_message(IDS[59])
        world.control.add_fault(
            FaultRule(
                fault=GmailFault(kind="error", code=400, reason="bad"), method="messages.get", ids=frozenset({IDS[30]})
            )
        )
        beats: list[int] = []
        outcome = await fetcher(world).fetch([*IDS, IDS[7]], lambda chunk: beats.append(len(chunk.settled)))
        assert outcome.duplicates == set(IDS[:5])
        assert outcome.gone == {IDS[59]}
        assert set(outcome.failed) == {IDS[30]}
        assert outcome.settled | set(outcome.failed) == set(IDS)
        assert beats == [20, 19, 20]

    in_virtual_time(SOURCE, tmp_path, story)


@pytest.mark.req("SY-5")
def test_an_outage_is_raised_and_held_against_no_message(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        world.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=503)))
        with pytest.raises(MailboxUnavailable):
            await fetcher(world).fetch(IDS)

    in_virtual_time(SOURCE, tmp_path, story)


@pytest.mark.req("SY-5")
def test_a_full_disk_is_held_against_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(archive: FileArchiveWriter, email: str, mails: object) -> None:
        raise Retryable("The disk is full.")

    async def story(world: SyncRig) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(FileArchiveWriter, "submit", full)
            with pytest.raises(Retryable, match="disk"):
                await fetcher(world).fetch(IDS)
        assert (await fetcher(world).fetch(IDS)).stored == set(IDS)

    in_virtual_time(SOURCE, tmp_path, story)


def test_an_archive_that_takes_nothing_is_to_blame_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(archive: FileArchiveWriter, email: str, mails: object) -> None:
        raise Fatal("The shard is damaged.")

    async def story(world: SyncRig) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(FileArchiveWriter, "submit", damaged)
            with pytest.raises(Fatal, match="damaged"):
                await fetcher(world).fetch(IDS)

    in_virtual_time(SOURCE, tmp_path, story)


@pytest.mark.req("SY-7")
def test_mail_of_many_at_once_is_stored_in_order_and_survives_callers_that_give_up(tmp_path: Path) -> None:
    mails = generated_mail(60)

    async def story(world: SyncRig) -> None:
        waiting = [asyncio.create_task(world.store.store(mails[start : start + 5])) for start in range(0, 60, 5)]
        await asyncio.sleep(0)
        waiting[3].cancel()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for start, stored in zip(range(0, 60, 5), answers, strict=True):
            if not isinstance(stored, BaseException):
                assert [each.key for each in stored] == [mail.gmail_id for mail in mails[start : start + 5]]
        await world.store.checkpoint()
        ids = [mail.gmail_id or "" for mail in mails]
        assert await world.store.known(ids) >= set(ids) - {mail.gmail_id for mail in mails[15:20]}

    in_virtual_time(SOURCE, tmp_path, story)


@pytest.mark.req("SY-8")
def test_a_checkpoint_leaves_nothing_in_the_log_of_any_shard(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        await fetcher(world).fetch(IDS)
        logs = list(world.root.rglob("20*.db-wal"))
        assert any(log.stat().st_size for log in logs)
        await world.store.checkpoint()
        assert all(log.stat().st_size == 0 for log in logs)

    in_virtual_time(SOURCE, tmp_path, story)
