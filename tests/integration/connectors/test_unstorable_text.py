"""Mail whose headers and text hold what no database, terminal or argument takes: it comes in like any other mail, and
holds up nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.db import Database, connect
from tests.integration.connectors.test_bad_message_in_live_pass import troubled
from tests.support.connectors import connector_rig, listed, ms, source_of
from tests.support.mail import OWNER

HEAD = b"From: Eve <eve@x.example>\r\nTo: %s\r\n" % OWNER.encode()
PLAIN = b"Content-Type: text/plain; charset=utf-8\r\n\r\n"
HOSTILE = {
    "NUL in the subject": HEAD + b"Subject: a\x00b\r\n" + PLAIN + b"Hello\r\n",
    "NUL in an encoded word": HEAD + b"Subject: =?utf-8?q?a=00b=1b[31m?=\r\n" + PLAIN + b"Hello\r\n",
    "NUL in the text": HEAD + b"Subject: x\r\n" + PLAIN + b"a\x00b\r\n",
    "half a character in the subject": HEAD + b"Subject: =?utf-7?q?+2AA-?=\r\n" + PLAIN + b"Hello\r\n",
    "half a character in utf-16": HEAD + b"Subject: =?utf-16-le?b?ANg=?=\r\n" + PLAIN + b"Hello\r\n",
    "bytes that are no text": HEAD + b"Subject: \xff\xfe\xed\xa0\x80\r\nReply-To: \xed\xa0\x80@x.example\r\n" + PLAIN,
    "control characters in In-Reply-To": HEAD + b"Subject: x\r\nIn-Reply-To: <a\x01\x7fb@x.example>\r\n" + PLAIN,
    "a NUL in In-Reply-To": HEAD + b"Subject: x\r\nIn-Reply-To: <a\x00b@x.example>\r\n" + PLAIN,
    "no text in References": HEAD + b"Subject: x\r\nReferences: <\xff\xed\xa0\x80@x.example>\r\n" + PLAIN,
    "no text in the sender": b"From: =?utf-8?q?=00=1b?= <\x00\xff@x.example>\r\nSubject: x\r\n" + PLAIN + b"Hello\r\n",
    "NUL in kept headers": HEAD + b"Subject: x\r\nList-Id: a\x00b\r\nAuto-Submitted: =?utf-8?q?=00?=\r\n" + PLAIN,
    "a NUL in a file's name": HEAD
    + b"Subject: x\r\nContent-Type: application/pdf; name*=utf-8''a%00b.pdf\r\n"
    + b"Content-Disposition: attachment; filename*=utf-8''a%00%1bb.pdf\r\n\r\nx\r\n",
}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Both: what one of them takes the other may refuse."""
    opened = await connect(database_url)
    yield opened
    await opened.close()


@pytest.mark.req("SY-13", "PL-4")
async def test_hostile_mail_comes_in_and_holds_up_nobody(database: Database, tmp_path: Path) -> None:
    async with connector_rig(source_of([listed(0, 1_700_000_000_000)]), database, tmp_path) as stage:
        await stage.passes.live()
        now = ms(stage.clock.now())
        sent = {
            kind: stage.sim.control.deliver(raw, frozenset({"INBOX"}), internal_date=now)
            for kind, raw in HOSTILE.items()
        }
        after = stage.deliver("Lunch?")
        await stage.passes.live()
        rows = await stage.rows()
        assert [kind for kind, key in sent.items() if key not in rows] == []
        assert after in rows
        assert await troubled(stage) == {}
