"""Mail is sent from an IMAP mailbox on a real server: handed in once by SMTP, and then among sent mail."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.domain.errors import NotAllowed
from postroom.mailboxes.errors import CallRefused, Gone, LoginNeeded, MailboxUnavailable
from postroom.mailboxes.imap.providers import submission_given
from postroom.mailboxes.imap.sending import PENDING, ImapOutbox, submission_of
from postroom.mailboxes.protocol import HeaderMark
from tests.support.dovecot import PASSWORD
from tests.support.imap import ImapRig, imap_rig
from tests.support.mail import OWNER, letter

MARK = HeaderMark("X-Postroom-Action", "one")
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass
class SmtpServer:
    """Takes mail from the owner; `refuses` are replies by command, `hangs_up` ends it after the last byte."""

    port: int = 0
    letters: list[tuple[str, list[str], bytes]] = field(default_factory=list)
    refuses: dict[str, bytes] = field(default_factory=dict)
    hangs_up: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender, recipients = "", list[str]()
        writer.write(b"220 smtp.example\r\n")
        while line := (await reader.readline()).decode().strip():
            word = line.split()[0].upper()
            answer = self.refuses.get(word)
            match word:
                case "EHLO":
                    answer = b"250-smtp.example\r\n250 AUTH PLAIN XOAUTH2\r\n"
                case "AUTH":
                    answer = answer or self._login(line)
                case "MAIL":
                    sender = line.partition("<")[2].partition(">")[0]
                case "RCPT":
                    recipients.append(line.partition("<")[2].partition(">")[0])
                case "DATA" if answer is None:
                    writer.write(b"354 go on\r\n")
                    body = await reader.readuntil(b"\r\n.\r\n")
                    self.letters.append((sender, recipients, body[:-3]))
                    if self.hangs_up:
                        break
            writer.write(answer or b"250 ok\r\n")
            await writer.drain()
        writer.close()

    def _login(self, line: str) -> bytes:
        said = base64.b64decode(line.split()[2]).decode()
        good = (f"\0{OWNER}\0{PASSWORD}", f"user={OWNER}\x01auth=Bearer good\x01\x01")
        return b"235 in\r\n" if said in good else b"535 not you\r\n"


@dataclass(frozen=True)
class Post:
    rig: ImapRig
    smtp: SmtpServer

    def outbox(self, **changed: object) -> ImapOutbox:
        sending = str(submission_given(f"127.0.0.1:{self.smtp.port}"))
        login = replace(self.rig.server.login(), **{"submission": sending, **changed})  # type: ignore[arg-type]
        return ImapOutbox(self.rig.mailbox, login)

    async def labels(self, message_id: str) -> frozenset[str]:
        return (await self.rig.mailbox.get(message_id)).label_ids


@pytest.fixture
async def post(tmp_path: Path) -> AsyncIterator[Post]:
    smtp = SmtpServer()
    async with contextlib.AsyncExitStack() as stack:
        rig = await stack.enter_async_context(imap_rig(tmp_path))
        server = await stack.enter_async_context(await asyncio.start_server(smtp.serve, "127.0.0.1", 0))
        smtp.port = server.sockets[0].getsockname()[1]
        yield Post(rig, smtp)


def written() -> bytes:
    headers = {"Cc": "bob@x.example", "Bcc": "eve@x.example", MARK.name: MARK.value}
    return letter("Hello", "How are you?\n.\nBye\n", to="Ann <ann@x.example>", headers=headers)


@pytest.mark.req("IM-5")
async def test_a_letter_is_handed_in_once_and_lies_among_sent_mail(post: Post) -> None:
    outbox = post.outbox()
    draft = await outbox.create_draft(written())
    assert "DRAFT" in await post.labels(draft.message_id)
    assert [each.id for each in await outbox.find_drafts(MARK, None)] == [draft.id]
    assert await outbox.find_sent(MARK, None, LONG_AGO) is None
    sent = await outbox.send_draft(draft.id)
    [(sender, recipients, body)] = post.smtp.letters
    assert (sender, recipients) == (OWNER, ["ann@x.example", "bob@x.example", "eve@x.example"])
    assert b"eve@x.example" not in body
    assert b"\r\n..\r\n" in body
    assert await post.labels(sent) == {"SENT"}
    assert await outbox.find_sent(MARK, None, LONG_AGO) == sent
    assert await outbox.find_drafts(MARK, None) == []
    with pytest.raises(Gone):
        await outbox.send_draft(draft.id)
    assert len(post.smtp.letters) == 1


@pytest.mark.req("IM-5")
async def test_a_letter_whose_fate_is_unknown_is_never_sent_again(post: Post) -> None:
    outbox = post.outbox()
    draft = await outbox.create_draft(written())
    post.smtp.hangs_up = True
    with pytest.raises(MailboxUnavailable) as raised:
        await outbox.send_draft(draft.id)
    assert raised.value.may_have_happened
    assert PENDING in await post.labels(draft.id)
    post.smtp.hangs_up = False
    with pytest.raises(Gone, match="may have been sent"):
        await post.outbox().send_draft(draft.id)
    assert len(post.smtp.letters) == 1


@pytest.mark.parametrize(
    ("refuses", "error"),
    [
        ({"RCPT": b"550 no such person\r\n"}, CallRefused),
        ({"MAIL": b"451 later\r\n"}, MailboxUnavailable),
        ({"DATA": b"554 spam\r\n"}, CallRefused),
        ({"AUTH": b"535 not you\r\n"}, LoginNeeded),
    ],
)
async def test_what_is_refused_stays_a_draft_and_can_be_sent_later(
    post: Post, refuses: dict[str, bytes], error: type[Exception]
) -> None:
    outbox = post.outbox()
    draft = await outbox.create_draft(written())
    post.smtp.refuses = refuses
    with pytest.raises(error):
        await outbox.send_draft(draft.id)
    assert PENDING not in await post.labels(draft.id)
    post.smtp.refuses = {}
    assert await outbox.send_draft(draft.id)
    assert len(post.smtp.letters) == 1


class Tokens:
    async def access_token(self, *, rejected: str | None = None) -> str:
        return "good"


async def test_a_login_by_browser_sends_too_and_a_draft_can_be_taken_back(post: Post) -> None:
    outbox = post.outbox(tokens=Tokens())
    draft = await outbox.create_draft(written())
    assert await outbox.send_draft(draft.id)
    other = await outbox.create_draft(letter("Other", "Text\n", to="ann@x.example"))
    await outbox.delete_draft(other.id)
    with pytest.raises(Gone):
        await outbox.delete_draft(other.id)


async def test_without_a_server_for_sending_nothing_is_sent(post: Post) -> None:
    outbox = post.outbox(submission="")
    draft = await outbox.create_draft(written())
    with pytest.raises(NotAllowed, match="--smtp-host"):
        await outbox.send_draft(draft.id)
    login = post.rig.server.login()
    assert submission_of(login) == ""
    known = replace(login, address=replace(login.address, host="imap.fastmail.com"))
    assert submission_of(known) == "smtps://smtp.fastmail.com:465"
