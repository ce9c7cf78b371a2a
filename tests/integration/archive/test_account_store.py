"""The archive from the event loop: nobody waits for ever, and news waits for mail on its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.archives import ME, generated_mail, opened_store


async def test_mail_that_comes_while_the_last_commit_ends_is_stored(tmp_path: Path) -> None:
    """Whoever was told "stored" brings the next at once, before the tasks of the last commit are over."""
    async with opened_store(tmp_path / "archive", ME) as store, asyncio.timeout(60):
        for mail in generated_mail(30):
            assert len(await store.store([mail])) == 1


async def test_settled_waits_for_mail_whose_bringer_has_given_up(tmp_path: Path) -> None:
    mails = generated_mail(40)
    async with opened_store(tmp_path / "archive", ME) as store:
        bringing = [asyncio.create_task(store.store([mail])) for mail in mails]
        await asyncio.sleep(0)
        for task in bringing:
            task.cancel()
        await store.settled()
        known = await store.known([mail.gmail_id for mail in mails if mail.gmail_id])
        assert len(known) == 40


async def test_settled_does_not_wait_for_mail_that_comes_later(tmp_path: Path) -> None:
    async with opened_store(tmp_path / "archive", ME) as store:
        with store.expecting():
            waiting = asyncio.create_task(store.settled())
            await asyncio.sleep(0)
            assert not waiting.done()
            later = store.expecting()
            later.__enter__()
        await asyncio.wait_for(waiting, 60)
        later.__exit__(None, None, None)
