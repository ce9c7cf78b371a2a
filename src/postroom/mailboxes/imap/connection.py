"""A logged-in connection to an IMAP server.

Certificates are verified; plain text is spoken only to this machine. Whatever goes wrong is raised as one of
`mailboxes.errors`, made here once: from the server's codes, from its BYE, and from what it sends against the rules.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from postroom.domain.errors import BadInput, PostroomError
from postroom.mailboxes import errors
from postroom.mailboxes.imap.refusals import failure_of, goodbye_of, refusal_of, unreachable
from postroom.mailboxes.imap.wire import (
    MAX_LITERAL,
    FlagLine,
    Literal,
    ResponseCode,
    ResponseReader,
    ServerResponse,
    WireError,
    as_text,
    quoted,
    token_message,
)
from postroom.mailboxes.ports import Credentials
from postroom.mailboxes.reachability import is_this_machine
from postroom.telemetry import logs
from postroom.tls import trusted

log = logs.get(__name__)

MOST_UNTAGGED = 20_000
"""Untagged responses to a command that asks for none in particular."""
MOST_KEPT = 64 << 20
"""Bytes of untagged responses, together, that are kept for the answer to one command."""
LONGEST_IDLE_S = 28 * 60.0
"""A server may end a connection that idles for 29 minutes (RFC 2177)."""
REPORTS = frozenset({"EXISTS", "EXPUNGE", "VANISHED", "FETCH"})
"""Untagged responses that tell of a change in the selected folder."""
_READ_BYTES = 1 << 16
_SENT_AT_ONCE = 50
"""Commands. Their answers fit into what either side can hold."""


class Security(StrEnum):
    """How a connection is protected, as the scheme of the server's address."""

    TLS = "imaps"
    STARTTLS = "imap+starttls"
    PLAIN = "imap"


_PORTS = {Security.TLS: 993, Security.STARTTLS: 143, Security.PLAIN: 143}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    host: str
    port: int
    security: Security = Security.TLS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.security}://{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        try:
            parts = urlsplit(text)
            return server_address(parts.hostname or "", parts.port, Security(parts.scheme))
        except ValueError:
            raise BadInput("host", f"{text!r} is not the address of an IMAP server") from None


def server_address(host: str, port: int | None = None, security: Security = Security.TLS) -> ServerAddress:
    """Raises BadInput unless it uses TLS or is on this machine."""
    plain = host.strip("[]").rstrip(".").lower()
    try:
        plain.encode("idna")
        is_host = bool(plain) and plain.isprintable() and not set(plain) & set(" /@?#\\")
    except ValueError:
        is_host = False
    if not is_host:
        raise BadInput("host", f"{host!r} is not the name of a server; write for example imap.example.com")
    if security is Security.PLAIN and not is_this_machine(plain):
        raise BadInput("host", f"{host} would get the password unencrypted; plain text is only for this machine")
    chosen = _PORTS[security] if port is None else port
    if not 1 <= chosen <= 65_535:
        raise BadInput("port", f"{chosen} is not within 1 to 65535")
    return ServerAddress(plain, chosen, security)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server may take, and how much it may send."""

    connect_s: float = 15.0
    silence_s: float = 60.0
    """The longest silence within an answer."""
    total_s: float = 600.0
    """The longest time for the answer to one command."""
    max_literal: int = MAX_LITERAL


@dataclass(frozen=True, slots=True)
class Answer:
    """A command's answer."""

    code: ResponseCode | None
    untagged: Sequence[ServerResponse]

    def named(self, name: str) -> list[ServerResponse]:
        return [each for each in self.untagged if each.name == name]

    def codes(self) -> dict[str, ResponseCode]:
        """All codes of the answer, by name."""
        found = {each.code.name: each.code for each in self.untagged if each.code is not None}
        return found if self.code is None else found | {self.code.name: self.code}


class IdleEnd(StrEnum):
    """How an IDLE ended."""

    REPORTED = "reported"
    LATE = "late"
    """The change was said only when the server was asked for the end, which a server that reports does not do."""
    QUIET = "quiet"


OnResponse = Callable[[ServerResponse], bool]
"""True if the response was taken; it is then not kept in the answer."""
OnFlags = Callable[[Sequence[FlagLine]], None]
Part = bytes | Literal


class ImapConnection:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: ServerAddress,
        patience: Patience,
    ) -> None:
        self.address = address
        self.capabilities: frozenset[str] = frozenset()
        self.selected: str | None = None
        """The folder that is selected, by its name on the wire."""
        self.uidvalidity = 0
        self.has_qresync = False
        self._is_open = True
        self._reader = reader
        self._writer = writer
        self._patience = patience
        self._responses = ResponseReader(patience.max_literal)
        self._waiting: deque[ServerResponse] = deque()
        self._next_tag = 0

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._reader.at_eof()

    async def has_ended(self) -> bool:
        """Whether the server has ended this connection while no one used it. What else it has said meanwhile is part of
        the next answer."""
        await asyncio.sleep(0)  # what has arrived is taken from the socket
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    self._waiting += self._responses.feed(await self._reader.read(_READ_BYTES))
        except (WireError, OSError):
            return True
        return not self.is_open or any(each.name == "BYE" and each.tag is None for each in self._waiting)

    async def command(
        self,
        *parts: Part,
        most: int = MOST_UNTAGGED,
        take: OnResponse | None = None,
        take_flags: OnFlags | None = None,
        changes: bool = False,
        secret: bool = False,
    ) -> Answer:
        """Send a command, of bytes with spaces between, and wait for its end.

        `take` sees untagged responses as they come, but for those that say only which flags a UID has, where
        `take_flags` sees these. `changes` says that it may have happened even if no answer comes.
        Any error but a refusal closes the connection.
        """
        with self._ending(changes):
            async with asyncio.timeout(self._patience.total_s):
                return await self._exchange(parts, most, take, take_flags, changes, secret)

    async def commands(self, lines: Sequence[bytes]) -> Answer:
        """Send commands without waiting for the end of each, some at a time; the untagged responses to all of them.
        One that is refused for its own sake is passed over. For commands that change nothing, nor what is selected.
        """
        untagged: list[ServerResponse] = []
        for start in range(0, len(lines), _SENT_AT_ONCE):
            some = lines[start : start + _SENT_AT_ONCE]
            with self._ending():
                async with asyncio.timeout(self._patience.total_s):
                    untagged += await self._exchange_all(some)
        return Answer(None, untagged)

    async def _exchange_all(self, lines: Sequence[bytes]) -> list[ServerResponse]:
        tags = [f"P{number}" for number in range(self._next_tag + 1, self._next_tag + 1 + len(lines))]
        self._next_tag += len(lines)
        self._writer.write(b"".join(b"%b %b\r\n" % (tag.encode(), line) for tag, line in zip(tags, lines, strict=True)))
        await self._drain()
        untagged: list[ServerResponse] = []
        left = set(tags)  # a server may end them in another order
        while left:
            response = await self._next()
            if response.tag is None:
                self._note(response)
                untagged.append(response)
                if len(untagged) > MOST_UNTAGGED:
                    raise WireError(f"more than {MOST_UNTAGGED:,} responses to a few commands")
            elif response.tag in left:
                left.remove(response.tag)
                with contextlib.suppress(errors.CallRefused, errors.LabelGone, errors.PermissionMissing):
                    self._require_ok(response, False)
            else:
                raise WireError("an answer to a command that was not given")
        return untagged

    @contextlib.contextmanager
    def _ending(self, changes: bool = False) -> Iterator[None]:
        """Any error but a refusal closes the connection."""
        try:
            yield
        except (WireError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.abort()
            raise failure_of(error, self.address.host, changes) from None
        except (errors.MailboxUnavailable, errors.MailboxThrottled, asyncio.CancelledError):
            self.abort()
            raise

    async def _exchange(
        self,
        parts: Sequence[Part],
        most: int,
        take: OnResponse | None,
        take_flags: OnFlags | None,
        changes: bool,
        secret: bool,
    ) -> Answer:
        self._next_tag += 1
        tag = f"P{self._next_tag}"
        untagged: list[ServerResponse] = []
        await self._send(tag, parts)
        count = kept = 0
        while count <= most:
            if take_flags is not None and (lines := await self._flag_lines()):
                count += len(lines)
                take_flags(lines)
                continue
            response = await self._next()
            if response.tag == tag:
                self._learn(response)
                self._require_ok(response, secret)
                return Answer(response.code, untagged)
            if response.tag is not None:
                raise WireError("an answer to a command that was not given")
            count += 1
            self._note(response, changes)
            if take is None or not take(response):
                untagged.append(response)
                kept += response.weight
                if kept > MOST_KEPT:
                    raise WireError(f"more than {MOST_KEPT:,} bytes in answer to one command")
        raise WireError(f"more than {most:,} responses to one command")

    async def _send(self, tag: str, parts: Sequence[Part]) -> None:
        pieces: list[bytes] = [tag.encode("ascii")]
        for part in parts:
            if isinstance(part, bytes):
                pieces.append(part)
                continue
            plus = b"+" if "LITERAL+" in self.capabilities else b""
            self._writer.write(b" ".join([*pieces, b"{%d%b}\r\n" % (len(part.data), plus)]))
            if not plus:
                await self._drain()
                await self._continuation(tag)
            self._writer.write(part.data)
            pieces = [b""] if part is not parts[-1] else []
        self._writer.write(b" ".join(pieces) + b"\r\n")
        await self._drain()

    async def _drain(self) -> None:
        async with asyncio.timeout(self._patience.silence_s):
            await self._writer.drain()

    async def _continuation(self, tag: str) -> str:
        for _ in range(MOST_UNTAGGED):
            response = await self._next()
            if response.tag == "+":
                return response.text
            if response.tag == tag:
                self._require_ok(response, False)
                raise WireError("an end where it should ask for more")
            self._note(response)
        raise WireError("no end of responses where it should ask for more")

    async def _next(self, *, silence_s: float | None = None) -> ServerResponse:
        while not self._waiting:
            self._waiting += self._responses.feed(await self._read(silence_s))
        return self._waiting.popleft()

    async def _flag_lines(self) -> list[FlagLine]:
        """Those that come next; none where something else does, which then waits."""
        if self._waiting:
            return []
        lines = self._responses.flag_lines(await self._read())
        self._waiting += self._responses.feed(b"")
        return lines

    async def _read(self, silence_s: float | None = None) -> bytes:
        async with asyncio.timeout(silence_s or self._patience.silence_s):
            data = await self._reader.read(_READ_BYTES)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        return data

    def _note(self, response: ServerResponse, changes: bool = False) -> None:
        self._learn(response)
        if response.name == "BYE" and response.tag is None:
            raise goodbye_of(response, self.address.host, changes)

    def _learn(self, response: ServerResponse) -> None:
        if response.name == "CAPABILITY":
            self._set_capabilities([as_text(each) for each in response.values])
        elif response.code is not None and response.code.name == "CAPABILITY":
            self._set_capabilities([as_text(each) for each in response.code.values])

    def _set_capabilities(self, names: Sequence[str]) -> None:
        self.capabilities = frozenset(name.upper() for name in names)

    def _require_ok(self, response: ServerResponse, secret: bool) -> None:
        if response.name != "OK":
            raise refusal_of(response, self.address.host, is_login=secret)

    async def idle(self, until: Awaitable[object]) -> IdleEnd:
        """IDLE (RFC 2177) on the selected folder: let the server report until it has reported a change, or until the
        time is up."""
        self._next_tag += 1
        tag = f"P{self._next_tag}"
        waiting = asyncio.ensure_future(until)
        try:
            with self._ending():
                await self._send(tag, [b"IDLE"])
                early = await self._untagged_until(tag, "+")
                end = IdleEnd.REPORTED if early or await self._reported(waiting) else IdleEnd.QUIET
                self._writer.write(b"DONE\r\n")
                await self._drain()
                late = await self._untagged_until(tag, tag)
                return IdleEnd.LATE if late and end is IdleEnd.QUIET else end
        finally:
            waiting.cancel()

    async def _untagged_until(self, tag: str, end: str) -> bool:
        """Read up to the response with this end; whether a change was reported before it."""
        is_reported = False
        for _ in range(MOST_UNTAGGED):
            response = await self._next()
            if response.tag is None:
                self._note(response)
                is_reported = is_reported or response.name in REPORTS
                continue
            if response.tag == tag:
                self._require_ok(response, False)
            if response.tag == end:
                return is_reported
            raise WireError("an answer that does not belong to IDLE")
        raise WireError(f"more than {MOST_UNTAGGED:,} responses to one command")

    async def _reported(self, waiting: asyncio.Future[Any]) -> bool:
        """Whether a change is reported while this waits. What a server says to keep the connection is none."""
        listening: asyncio.Future[Any] = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait({listening, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                listening.result()
                return True
            return False
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self) -> None:
        for _ in range(MOST_UNTAGGED):
            response = await self._next(silence_s=LONGEST_IDLE_S)
            if response.tag is not None:
                raise WireError("an answer to a command that was not given")
            self._note(response)
            if response.name in REPORTS:
                return
        raise WireError(f"more than {MOST_UNTAGGED:,} responses to one command")

    async def greet(self) -> None:
        """Read the greeting, and turn to TLS where that is asked for after it."""
        try:
            async with asyncio.timeout(self._patience.connect_s):
                greeting = await self._next()
        except (WireError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.abort()
            raise self._not_imap(error) from None
        self._note(greeting)
        if greeting.tag is not None or greeting.name not in ("OK", "PREAUTH"):
            self.abort()
            raise self._not_imap(WireError("something else than a greeting"))
        if self.address.security is Security.STARTTLS:
            await self._start_tls(greeting)

    def _not_imap(self, error: Exception) -> PostroomError:
        if isinstance(error, WireError):
            return errors.CallRefused(
                f"What answers at {self.address} is not an IMAP server: it sent {error}.", status=0, reason="not_imap"
            )
        return errors.MailboxUnreachable(f"{self.address.host} accepted the connection and sent no greeting")

    async def _start_tls(self, greeting: ServerResponse) -> None:
        """Nothing that arrived before TLS counts after it, and without TLS nothing more is said."""
        host = self.address.host
        if greeting.name == "PREAUTH":
            self.abort()
            raise errors.PermissionMissing(f"{host} logs in before TLS, so TLS cannot be trusted.", reason="starttls")
        if not self.capabilities:
            await self.command(b"CAPABILITY")
        if "STARTTLS" not in self.capabilities:
            self.abort()
            raise errors.PermissionMissing(
                f"{host} does not offer STARTTLS, or someone between has removed it. Nothing was sent. Use --tls "
                "if the server has it.",
                reason="starttls",
            )
        await self.command(b"STARTTLS")
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]
        if self._waiting or not self._responses.is_idle or await self._has_unread():
            self.abort()
            raise errors.PermissionMissing(f"{host} sent something between STARTTLS and TLS.", reason="starttls")
        try:
            async with asyncio.timeout(self._patience.connect_s):
                await self._writer.start_tls(trusted(), server_hostname=host)
        except (OSError, TimeoutError, ssl.SSLError) as error:
            self.abort()
            raise unreachable(error, host) from None
        self.capabilities = frozenset()

    async def _has_unread(self) -> bool:
        try:
            async with asyncio.timeout(0):
                return bool(await self._reader.read(1))
        except TimeoutError:
            return False

    async def log_in(self, user: str, password: str) -> None:
        """Raises LoginNeeded where the server refuses the name or the password."""
        logs.learn_secrets([password])
        if not self.capabilities:
            await self.command(b"CAPABILITY")
        before = self.capabilities
        self.capabilities = frozenset()
        if "AUTH=PLAIN" in before:
            await self._authenticate("PLAIN", f"\0{user}\0{password}", has_initial="SASL-IR" in before)
        elif "LOGINDISABLED" in before:
            self.abort()
            raise errors.PermissionMissing(f"{self.address.host} takes no password here.", reason="logindisabled")
        else:
            parts = (Literal(each.encode()) if not each.isascii() else quoted(each) for each in (user, password))
            await self.command(b"LOGIN", *parts, secret=True)
        await self._logged_in()

    async def log_in_by_token(self, user: str, token: str) -> None:
        """With a token from a login by browser. Raises LoginNeeded where the server refuses it."""
        if not self.capabilities:
            await self.command(b"CAPABILITY")
        before = self.capabilities
        self.capabilities = frozenset()
        message = token_message(before, user, token, self.address.host, self.address.port)
        if message is None:
            self.abort()
            raise errors.PermissionMissing(f"{self.address.host} takes no login by browser.", reason="no_oauth")
        await self._authenticate(*message, has_initial="SASL-IR" in before)
        await self._logged_in()

    async def _logged_in(self) -> None:
        if not self.capabilities:
            await self.command(b"CAPABILITY")
        await self._enable()

    async def _authenticate(self, mechanism: str, message: str, *, has_initial: bool) -> None:
        """A server that refuses a token says why before it says no, and waits for an answer to that."""
        encoded, decline = base64.b64encode(message.encode()), b"AQ==" if mechanism == "OAUTHBEARER" else b""
        logs.learn_secrets([encoded.decode("ascii")])
        self._next_tag += 1
        tag = f"P{self._next_tag}"
        first = f"{tag} AUTHENTICATE {mechanism}".encode("ascii")
        waiting = [decline] if has_initial else [encoded, decline]
        try:
            async with asyncio.timeout(self._patience.total_s):
                self._writer.write(first + (b" " + encoded if has_initial else b"") + b"\r\n")
                await self._drain()
                for _ in range(MOST_UNTAGGED):
                    response = await self._next()
                    if response.tag == tag:
                        break
                    if response.tag == "+" and waiting:
                        self._writer.write(waiting.pop(0) + b"\r\n")
                        await self._drain()
                    elif response.tag is None:
                        self._note(response)
                    else:
                        raise WireError("a question that no login has")
        except (WireError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.abort()
            raise failure_of(error, self.address.host, False) from None
        self._learn(response)
        self._require_ok(response, True)

    async def _enable(self) -> None:
        if {"QRESYNC", "ENABLE"} <= self.capabilities:
            answer = await self.command(b"ENABLE QRESYNC CONDSTORE")
            enabled = {as_text(each).upper() for response in answer.named("ENABLED") for each in response.values}
            self.has_qresync = "QRESYNC" in enabled

    def abort(self) -> None:
        """Close at once."""
        self._is_open = False
        self._writer.transport.abort()

    async def close(self) -> None:
        if not self.is_open:
            self.abort()
            return
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                self._writer.write(b"P0 LOGOUT\r\n")
                await self._writer.drain()
        self.abort()


@dataclass(frozen=True, slots=True)
class ImapLogin:
    """Who logs in where. The address is part of it, so that a password is never sent to another server."""

    email: str
    address: ServerAddress
    user: str
    password: str = field(repr=False)
    submission: str = ""
    """Where its mail is sent from, as `providers.SubmissionServer` writes it; empty: nowhere."""
    tokens: Credentials | None = field(default=None, repr=False, compare=False)
    """From a login by browser, in place of a password."""


async def open_connection(login: ImapLogin, patience: Patience = Patience()) -> ImapConnection:  # noqa: B008 - frozen
    """Connected, protected and logged in. A token that the server refuses is renewed once."""
    if login.tokens is None:
        return await _opened(login, patience, None)
    token = await login.tokens.access_token()
    try:
        return await _opened(login, patience, token)
    except errors.LoginNeeded:
        renewed = await login.tokens.access_token(rejected=token)
        return await _opened(login, patience, renewed)


async def _opened(login: ImapLogin, patience: Patience, token: str | None) -> ImapConnection:
    address = login.address
    tls = trusted() if address.security is Security.TLS else None
    try:
        async with asyncio.timeout(patience.connect_s):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls, limit=_READ_BYTES)
    except (OSError, TimeoutError) as error:
        raise unreachable(error, address.host) from None
    connection = ImapConnection(reader, writer, address, patience)
    try:
        await connection.greet()
        if token is None:
            await connection.log_in(login.user, login.password)
        else:
            await connection.log_in_by_token(login.user, token)
    except BaseException:
        connection.abort()
        raise
    return connection
