"""A hostile or broken IMAP server costs bounded time and memory, and gets no password that it should not have."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from postroom.accounts.account import NewAccount, Provider, add_account
from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.domain.errors import BadInput, PostroomError
from postroom.mailboxes.errors import (
    CallRefused,
    LoginNeeded,
    MailboxError,
    MailboxThrottled,
    MailboxUnavailable,
    MailboxUnreachable,
    PermissionMissing,
)
from postroom.mailboxes.imap import connection as connections
from postroom.mailboxes.imap.connection import (
    ImapLogin,
    Patience,
    Security,
    ServerAddress,
    open_connection,
    server_address,
)
from postroom.mailboxes.imap.login import examine_imap
from postroom.mailboxes.imap.mailbox import ImapMailbox
from postroom.mailboxes.imap.places import digest
from postroom.mailboxes.imap.session import ConnectionPool
from tests.support.databases import install
from tests.support.dovecot import dovecot, require_dovecot
from tests.support.imap import session_of
from tests.support.mail import OWNER

PATIENCE = Patience(connect_s=2, silence_s=2, total_s=4, max_literal=1 << 20)
GREETING = b"* OK [CAPABILITY IMAP4rev1 UIDPLUS CONDSTORE] ready\r\n"
Answers = Callable[[str, str], bytes | None]
"""What is sent for a command, given its tag and its words; None: the connection is closed."""


class ScriptedServer:
    """Says what a test tells it to say. `heard` has every line that a client sent."""

    def __init__(self, answers: Answers, greeting: bytes = GREETING) -> None:
        self.heard: list[str] = []
        self.port = 0
        self._answers = answers
        self._greeting = greeting
        self._open: dict[asyncio.StreamWriter, asyncio.Task[object] | None] = {}

    async def end(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*(task for task in self._open.values() if task), return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            writer.write(self._greeting)
            while line := (await reader.readline()).decode("latin-1").strip():
                self.heard.append(line)
                tag, _, words = line.partition(" ")
                answer = self._answers(tag, words)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()

    def login(self, security: Security = Security.PLAIN) -> ImapLogin:
        return ImapLogin(OWNER, server_address("127.0.0.1", self.port, security), OWNER, "very secret")


@contextlib.asynccontextmanager
async def scripted(answers: Answers, greeting: bytes = GREETING) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(answers, greeting)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await server.end()


def polite(**said: bytes) -> Answers:
    """A server with an inbox of two messages; what it says to a command can be replaced. `TAG` becomes the tag."""
    usual = {
        "LIST": b'* LIST () "/" INBOX\r\n',
        "STATUS": b"* STATUS INBOX (MESSAGES 2 UIDNEXT 3 UIDVALIDITY 7 HIGHESTMODSEQ 5)\r\n",
        "EXAMINE": b"* 2 EXISTS\r\n* OK [UIDVALIDITY 7] ok\r\n* OK [UIDNEXT 3] ok\r\n* OK [HIGHESTMODSEQ 5] ok\r\n",
        "FETCH": b"".join(
            b'* %d FETCH (UID %d FLAGS () INTERNALDATE "01-Jan-2020 00:00:00 +0000" RFC822.SIZE 4)\r\n' % (n, n)
            for n in (1, 2)
        ),
        "SEARCH": b"* SEARCH 1 2\r\n",
        "BODY": b"* 1 FETCH (UID 1 BODY[] {4}\r\na: b)\r\n* 2 FETCH (UID 2 BODY[] {4}\r\nc: d)\r\n",
    }
    usual |= {name: each for name, each in said.items()}

    def answer(tag: str, words: str) -> bytes | None:
        name = words.split()[0].upper() if words else ""
        if name == "UID":
            name = "BODY" if "BODY.PEEK[]" in words else words.split()[1].upper()
        said = usual.get(name, b"")
        if said == b"CLOSE":
            return None
        done = b"" if b"TAG" in said else f"{tag} OK done\r\n".encode()
        return said.replace(b"TAG", tag.encode()) + done

    return answer


@contextlib.asynccontextmanager
async def mailbox_of(server: ScriptedServer, folder: Path) -> AsyncIterator[ImapMailbox]:
    database, clock = await connect(f"sqlite:///{install(folder) / 'postroom.db'}"), SystemClock()
    login = server.login()
    new = NewAccount(OWNER, str(login.address), provider=Provider.IMAP)
    account = await database.write(lambda tx: add_account(tx, new, clock.now()))
    session = session_of(login, database, account, clock, PATIENCE)
    try:
        yield ImapMailbox(session)
    finally:
        await session.close()
        await database.close()


async def ids_of(mailbox: ImapMailbox) -> list[str]:
    return [each async for page in mailbox.list() for each in page.ids]


async def refusal(act: Callable[[], Awaitable[object]]) -> PostroomError:
    with pytest.raises(PostroomError) as raised:
        await act()
    return raised.value


async def test_a_polite_server_is_listed_and_read(tmp_path: Path) -> None:
    async with scripted(polite()) as server, mailbox_of(server, tmp_path) as mailbox:
        assert len(await ids_of(mailbox)) == 2
        assert (await mailbox.identity()).messages_total == 2


@pytest.mark.req("IM-7")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"FETCH": b"* 1 FETCH (UID 1 BODY[] {10737418240}\r\n"}, "literal of 10,737,418,240 bytes"),
        ({"LIST": b"* LIST " + b"(" * 40 + b"\r\n"}, "nested"),
        ({"LIST": b'* LIST () "/" INBOX\r\n' * 25_000}, "more than 20,000 responses"),
        ({"LIST": b'* LIST () "/" Other\r\n'}, "lists no inbox"),
        ({"EXAMINE": b"* 2 EXISTS\r\n"}, "does not say how the folder"),
        ({"EXAMINE": b"* 9 EXISTS\r\n* OK [UIDVALIDITY 7] ok\r\n"}, "holds 9 messages, and lists 2"),
        ({"LIST": b"* BYE shutting down\r\n"}, "ended the connection: shutting down"),
        ({"EXAMINE": b"CLOSE"}, "was lost"),
        ({"LIST": b"P99 OK of another command\r\n"}, "an answer to a command that was not given"),
        ({"EXAMINE": b"TAG NO [UNAVAILABLE] try later\r\n"}, "try later"),
    ],
)
async def test_what_breaks_the_rules_is_told_and_ends_the_connection(
    tmp_path: Path, said: dict[str, bytes], told: str
) -> None:
    async with scripted(polite(**said)) as server, mailbox_of(server, tmp_path) as mailbox:
        error = await refusal(lambda: ids_of(mailbox))
        assert isinstance(error, MailboxUnavailable)
        assert told in error.message
        assert "very secret" not in error.message


@pytest.mark.req("IM-7")
async def test_an_answer_is_bounded_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_KEPT", 1 << 20)
    name = b'* LIST () "/" {100000}\r\n' + b"x" * 100_000 + b"\r\n"
    answers = polite(LIST=9 * name, LSUB=11 * name, STATUS=11 * (b"* OK " + b"x" * 100_000 + b"\r\n"))
    async with scripted(answers) as server:
        connection = await open_connection(server.login(), PATIENCE)
        assert len((await connection.command(b"LIST")).untagged) == 9
        await connection.close()
        for command in (b"LSUB", b"STATUS"):
            connection = await open_connection(server.login(), PATIENCE)
            error = await refusal(partial(connection.command, command))
            assert "more than 1,048,576 bytes in answer to one command" in error.message
            assert not connection.is_open


@pytest.mark.req("IM-7")
async def test_a_message_that_the_server_cannot_give_is_its_own_trouble(tmp_path: Path) -> None:
    said = b"TAG NO [SERVERBUG] cannot read it\r\n"

    def answer(tag: str, words: str) -> bytes | None:
        is_second = "BODY.PEEK[]" in words and words.split()[2] != "1"
        return said.replace(b"TAG", tag.encode()) if is_second else polite(BODY=_ONE)(tag, words)

    async with scripted(answer) as server, mailbox_of(server, tmp_path) as mailbox:
        ids = await ids_of(mailbox)
        assert sorted(each.startswith("unread-") for each in ids) == [False, True]
        results = await mailbox.fetch(ids)
        assert sorted(type(each).__name__ for each in results) == ["Failed", "Got"]


_ONE = b"* 1 FETCH (UID 1 BODY[] {4}\r\na: b)\r\n"


@pytest.mark.req("IM-7")
async def test_a_server_that_forgets_half_of_its_listing_has_deleted_nothing(tmp_path: Path) -> None:
    said: dict[str, bytes] = {}
    answers: Answers = lambda tag, words: polite(**said)(tag, words)  # noqa: E731 - `said` changes
    async with scripted(answers) as server, mailbox_of(server, tmp_path) as mailbox:
        known = await ids_of(mailbox)
        since = (await mailbox.identity()).cursor
        said["STATUS"] = b"* STATUS INBOX (MESSAGES 2 UIDNEXT 3 UIDVALIDITY 8 HIGHESTMODSEQ 6)\r\n"
        said["EXAMINE"] = b"* 2 EXISTS\r\n* OK [UIDVALIDITY 8] ok\r\n* OK [UIDNEXT 3] ok\r\n"
        said["FETCH"] = b"* 1 FETCH (UID 1 FLAGS () RFC822.SIZE 4)\r\n"
        error = await refusal(lambda: _read_all(mailbox, since))
        assert "holds 2 messages, and lists 1" in error.message
        said.clear()
        assert await ids_of(mailbox) == known


async def _read_all(mailbox: ImapMailbox, since: str) -> None:
    _ = [page async for page in mailbox.changes(since)]


_DESCRIBED = b'* 1 FETCH (UID 1 FLAGS () INTERNALDATE "01-Jan-2020 00:00:00 +0000" RFC822.SIZE 4)\r\n'


@pytest.mark.req("IM-7", "HW-1")
@pytest.mark.parametrize("when", ["never", "at first"])
async def test_a_message_that_is_counted_and_never_given_holds_up_no_other(tmp_path: Path, when: str) -> None:
    """The server counts and lists two messages, and of the second gives neither bytes nor flags; or only at first, to
    describe it."""
    said = {"BODY": _ONE} | ({"FETCH": _DESCRIBED} if when == "never" else {})

    def answer(tag: str, words: str) -> bytes | None:
        is_of_flags = words.startswith("UID FETCH") and words.endswith("(UID FLAGS)")
        return polite(**said, **({"FETCH": b""} if is_of_flags and when != "never" else {}))(tag, words)

    async with scripted(answer) as server, mailbox_of(server, tmp_path) as mailbox:
        before = (await mailbox.identity()).cursor
        ids = await ids_of(mailbox)
        assert sorted(each.startswith("unread-") for each in ids) == [False, True]
        results = await mailbox.fetch(ids)
        assert sorted(type(each).__name__ for each in results) == ["Failed", "Got"], "it is troubled, the other is here"
        pages = [page async for page in mailbox.changes(before)]
        reached = pages[-1].cursor
        assert reached is not None
        assert reached >= before
        server.heard.clear()
        for _ in range(3):
            await _read_all(mailbox, reached)
        assert len(server.heard) < 20, "it is not asked for again and again"


@pytest.mark.req("IM-7")
async def test_a_folder_in_broken_utf_7_is_a_folder(tmp_path: Path) -> None:
    said = {"LIST": b'* LIST () "/" INBOX\r\n* LIST () "/" "&Jjo!-"\r\n'}
    async with scripted(polite(**said)) as server, mailbox_of(server, tmp_path) as mailbox:
        assert "&Jjo!-" in {label.name for label in await mailbox.labels()}


@pytest.mark.req("IM-10")
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"TAG NO [LIMIT] too much\r\n", MailboxThrottled),
        (b"TAG NO [THROTTLED] slow down\r\n", MailboxThrottled),
        (b"TAG NO [AUTHENTICATIONFAILED] no\r\n", LoginNeeded),
        (b"TAG NO wrong\r\n", LoginNeeded),
        (b"TAG NO [UNAVAILABLE] later\r\n", MailboxUnavailable),
        (b"TAG NO Temporary authentication failure\r\n", MailboxUnavailable),
        (b"* BYE Too many connections\r\n", MailboxThrottled),
    ],
)
async def test_what_a_server_says_to_a_login_becomes_the_right_error(answer: bytes, kind: type[PostroomError]) -> None:
    async with scripted(polite(LOGIN=answer)) as server:
        error = await refusal(lambda: open_connection(server.login(), PATIENCE))
        assert type(error) is kind


@pytest.mark.req("IM-1")
@pytest.mark.parametrize("initial", ["SASL-IR", ""])
@pytest.mark.parametrize("said", ["TAG BAD unknown: ", "TAG NO unknown: ", "* BYE unknown: "])
async def test_a_server_that_repeats_a_login_does_not_get_it_into_an_error(said: str, initial: str) -> None:
    token = base64.b64encode(f"\0{OWNER}\0very secret".encode()).decode()

    def answers(tag: str, words: str) -> bytes | None:
        if token not in f"{tag} {words}":
            return b"+ go on\r\n" if words.startswith("AUTHENTICATE") else polite()(tag, words)
        own = server.heard[-2].split()[0] if tag == token else tag
        return f"{said.replace('TAG', own)}{'.' * 150}{token}\r\n".encode()

    async with scripted(answers, f"* OK [CAPABILITY IMAP4rev1 AUTH=PLAIN {initial}] hi\r\n".encode()) as server:
        error = await refusal(lambda: open_connection(server.login(), PATIENCE))
        assert token[:8] not in error.message


@pytest.mark.req("IM-1")
@pytest.mark.parametrize(
    ("greeting", "answers"),
    [
        (b"* OK [CAPABILITY IMAP4rev1] no TLS here\r\n", polite()),
        (b"* PREAUTH [CAPABILITY IMAP4rev1 STARTTLS] welcome\r\n", polite()),
        (
            b"* OK [CAPABILITY IMAP4rev1 STARTTLS] ready\r\n",
            polite(STARTTLS=b"TAG OK go\r\n* OK [CAPABILITY IMAP4rev1 AUTH=PLAIN] injected\r\n"),
        ),
    ],
)
async def test_without_tls_no_password_is_sent(greeting: bytes, answers: Answers) -> None:
    async with scripted(answers, greeting) as server:
        error = await refusal(lambda: open_connection(server.login(Security.STARTTLS), PATIENCE))
        assert isinstance(error, PermissionMissing)
        assert not any("LOGIN" in line or "AUTHENTICATE" in line for line in server.heard)


class CountedTokens:
    """`stale` until it is refused, then `fresh`."""

    def __init__(self) -> None:
        self.rejected: list[str | None] = []

    async def access_token(self, *, rejected: str | None = None) -> str:
        self.rejected.append(rejected)
        return "stale" if rejected is None else "fresh"


def token_server(capability: str) -> Answers:
    """Accepts `fresh` only, and says why before it says no."""
    waiting: list[str] = []

    def verdict(encoded: str, tag: str) -> bytes:
        message = base64.b64decode(encoded).decode()
        if "Bearer fresh\x01\x01" in message and OWNER in message:
            return f"{tag} OK in\r\n".encode()
        waiting.append(tag)
        return b"+ eyJzdGF0dXMiOiI0MDAifQ==\r\n"

    def answer(tag: str, words: str) -> bytes | None:
        if words == "CAPABILITY":
            return f"* CAPABILITY IMAP4rev1 UIDPLUS {capability}\r\n{tag} OK\r\n".encode()
        if words.startswith("AUTHENTICATE"):
            given = words.split()[2:]
            if given:
                return verdict(given[0], tag)
            waiting.append(tag)
            return b"+ \r\n"
        if waiting:  # the rest of a login has no tag
            began = waiting.pop()
            return f"{began} NO not you\r\n".encode() if tag in ("AQ==", "") else verdict(tag, began)
        return f"{tag} OK\r\n".encode()

    return answer


@pytest.mark.req("IM-1")
@pytest.mark.parametrize(
    "capability", ["AUTH=OAUTHBEARER SASL-IR", "AUTH=XOAUTH2 AUTH=OAUTHBEARER", "AUTH=OAUTHBEARER"]
)
async def test_a_token_that_is_refused_is_renewed_once(capability: str) -> None:
    async with scripted(token_server(capability), b"* OK hello\r\n") as server:
        tokens = CountedTokens()
        connection = await open_connection(replace(server.login(), tokens=tokens), PATIENCE)
        await connection.close()
        assert tokens.rejected == [None, "stale"]
        assert not any("very secret" in line for line in server.heard), "the password is for others"


async def test_a_server_without_tokens_gets_none() -> None:
    async with scripted(token_server("AUTH=PLAIN"), b"* OK hello\r\n") as server:
        tokens = CountedTokens()
        error = await refusal(lambda: open_connection(replace(server.login(), tokens=tokens), PATIENCE))
        assert isinstance(error, PermissionMissing)
        assert not any("AUTHENTICATE" in line for line in server.heard)


async def test_a_server_that_asks_on_and_on_is_left() -> None:
    async with scripted(lambda tag, words: b"+ more\r\n", b"* OK [CAPABILITY IMAP4rev1 AUTH=XOAUTH2] hi\r\n") as server:
        login = replace(server.login(), tokens=CountedTokens())
        assert isinstance(await refusal(lambda: open_connection(login, PATIENCE)), MailboxUnavailable)


@pytest.mark.req("IM-8")
@pytest.mark.parametrize("words", [b"shutting down", b"Too many connections"])
async def test_a_goodbye_within_a_change_leaves_open_whether_it_happened(words: bytes) -> None:
    async with scripted(polite(APPEND=b"* BYE " + words + b"\r\n")) as server:
        connection = await open_connection(server.login(), PATIENCE)
        append = connection.command(b"APPEND", b'"INBOX"', b'"a: b"', changes=True)
        error = await refusal(lambda: append)
        assert isinstance(error, MailboxError)
        assert error.may_have_happened


@pytest.mark.req("IM-7")
async def test_a_connection_that_the_server_ended_while_idle_is_not_used_again() -> None:
    said: dict[str, bytes] = {"NOOP": b"TAG OK done\r\n* BYE idle for too long\r\n"}
    answers: Answers = lambda tag, words: polite(**said)(tag, words)  # noqa: E731 - `said` changes
    async with scripted(answers) as server:
        pool = ConnectionPool(server.login, PATIENCE)
        async with pool.use() as first:
            await first.command(b"NOOP")
        said["NOOP"] = b"TAG OK done\r\n* OK still here\r\n"
        async with pool.use() as second:
            await second.command(b"NOOP")
        async with pool.use() as third:
            assert [each.text for each in (await third.command(b"NOOP")).untagged] == ["still here"]
        assert (first is second, second is third) == (False, True)
        await pool.close()


async def test_what_is_no_imap_server_is_told() -> None:
    async with scripted(polite(), b"HTTP/1.1 400 Bad Request\r\n") as server:
        assert isinstance(await refusal(lambda: open_connection(server.login(), PATIENCE)), CallRefused)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    require_dovecot()
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    more = ["-addext", "subjectAltName=DNS:localhost", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run([*command, *more], check=True, capture_output=True)
    return files


@pytest.mark.req("IM-1")
@pytest.mark.parametrize("security", [Security.TLS, Security.STARTTLS])
async def test_certificates_are_verified(
    certificate: tuple[Path, Path], security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dovecot(certificate=certificate) as server:
        login = server.login(security, "localhost")
        error = await refusal(lambda: open_connection(login, PATIENCE))
        assert isinstance(error, MailboxUnreachable)
        assert "certificate" in error.message
        context = ssl.create_default_context(cafile=str(certificate[0]))
        monkeypatch.setattr(connections, "trusted", lambda: context)
        assert {finding.verdict for finding in await examine_imap(login)} == {"ok"}
        other = server.login(security, "127.0.0.1")
        assert isinstance(await refusal(lambda: open_connection(other, PATIENCE)), MailboxUnreachable)


@pytest.mark.req("IM-1")
def test_plain_text_is_only_for_this_machine() -> None:
    with pytest.raises(BadInput, match="unencrypted"):
        server_address("imap.example.com", None, Security.PLAIN)
    parsed = ServerAddress.parse("imap+starttls://[::1]:143")
    assert (parsed.host, str(parsed)) == ("::1", "imap+starttls://[::1]:143")


_BARE = b"* OK [CAPABILITY IMAP4rev1 UIDPLUS] ready\r\n"
_OPENED = b"* 2 EXISTS\r\n* OK [UIDVALIDITY 7] ok\r\n* OK [UIDNEXT 3] ok\r\n"


def bare(said: dict[str, bytes]) -> Answers:
    """A server that counts no changes; what it says of all flags is `FLAGS`. `said` may change."""

    def answer(tag: str, words: str) -> bytes | None:
        counted = {"STATUS": b"* STATUS INBOX (MESSAGES 2 UIDNEXT 3 UIDVALIDITY 7)\r\n", "EXAMINE": _OPENED} | said
        if words.endswith("(UID FLAGS)") and "FLAGS" in said:
            counted["FETCH"] = said["FLAGS"]
        return polite(**counted)(tag, words)

    return answer


@pytest.mark.req("IM-7")
async def test_flags_without_end_are_refused_and_end_the_connection(tmp_path: Path) -> None:
    said: dict[str, bytes] = {}
    async with scripted(bare(said), _BARE) as server, mailbox_of(server, tmp_path) as mailbox:
        known = await ids_of(mailbox)
        since = (await mailbox.identity()).cursor
        said["FLAGS"] = b"".join(b"* 1 FETCH (UID %d FLAGS (\\Seen))\r\n" % uid for uid in range(1, 20_100))
        error = await refusal(lambda: _read_all(mailbox, since))
        assert "more than 20,008 responses to one command" in error.message
        said.clear()
        assert await ids_of(mailbox) == known


@pytest.mark.req("IM-3", "IM-7")
@pytest.mark.parametrize("form", [b"(UID %d FLAGS (%b))", b"(FLAGS (%b) UID %d)", b"(UID %d FLAGS (%b) MODSEQ (9))"])
async def test_flags_are_compared_in_whatever_form_a_server_says_them(tmp_path: Path, form: bytes) -> None:
    said: dict[str, bytes] = {}
    async with scripted(bare(said), _BARE) as server, mailbox_of(server, tmp_path) as mailbox:
        await ids_of(mailbox)
        since = (await mailbox.identity()).cursor
        values = [(b"\\Recent \\Flagged NIL", 1), (b"", 2)]
        lines = [form % (pair if form.startswith(b"(FLAGS") else pair[::-1]) for pair in values]
        said["FLAGS"] = b"".join(b"* %d FETCH %b\r\n" % each for each in enumerate(lines, 1))
        [page] = [page async for page in mailbox.changes(since)]
        [delta] = page.relabelled
        assert (delta.add, delta.remove) == (frozenset({"STARRED"}), frozenset())


@pytest.mark.req("IM-3", "IM-7")
async def test_mail_behind_a_next_uid_that_did_not_move_is_found_by_the_count(tmp_path: Path) -> None:
    """A server that breaks the rules: one message went, another came, and the next UID is the one that it was."""
    said: dict[str, bytes] = {}
    async with scripted(bare(said), _BARE) as server, mailbox_of(server, tmp_path) as mailbox:
        before = await ids_of(mailbox)
        since = (await mailbox.identity()).cursor
        said["FLAGS"] = b"* 1 FETCH (UID 1 FLAGS ())\r\n"
        said["SEARCH"] = b"* SEARCH 1 9\r\n"
        said["FETCH"] = b'* 2 FETCH (UID 9 FLAGS () INTERNALDATE "01-Jan-2020 00:00:00 +0000" RFC822.SIZE 4)\r\n'
        said["BODY"] = b"* 1 FETCH (UID 1 BODY[] {4}\r\na: b)\r\n* 2 FETCH (UID 9 BODY[] {4}\r\ne: f)\r\n"
        pages = [page async for page in mailbox.changes(since)]
        assert [len(page.added) for page in pages] == [1]
        assert [each for page in pages for each in page.deleted] == [digest(b"c: d")]
        assert set(await ids_of(mailbox)) == {digest(b"a: b"), digest(b"e: f")} != set(before)
