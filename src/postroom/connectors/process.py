"""A connector as its own process: source credentials, an MCP token, and no database.

Timers run the passes, each in its own task, so that history never delays live mail. Transient errors are retried
with backoff; errors that need a person show on `/health`, which is served on loopback together with `/metrics`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from postroom.connectors.mcp_client import http_client, over_http
from postroom.connectors.passes import ConnectorContext, GmailPasses
from postroom.connectors.state_files import FolderShared, folder_of, held, read_json, write_json
from postroom.domain.clock import Backoff, Clock, SystemClock
from postroom.domain.errors import BadInput, PostroomError, Retryable
from postroom.domain.ids import new_id, normal_email
from postroom.mailboxes.credentials import GrantStore, credentials_for
from postroom.mailboxes.gmail.client import connected
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.gmail.methods import PROFILES, ProfileName
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.limiter import limiter_for
from postroom.settings import ConnectorSettings, Settings
from postroom.telemetry import logs, metrics
from postroom.telemetry.endpoint import LoopbackServer, TimeoutHandler
from postroom.vault import Vault

Health = Callable[[], Mapping[str, Any]]
"""What to say; `status` is `ok` or not."""


@contextmanager
def serve_health(port: int, health: Health, metrics_token: str | None) -> Iterator[str]:
    """Serve until the block ends; yields the address (port 0 asks the system for a free one)."""
    try:
        server = LoopbackServer(port, _handler(health, metrics_token))
    except OSError as error:
        raise BadInput("health_port", f"{port} cannot be used: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(health: Health, metrics_token: str | None) -> type[TimeoutHandler]:
    class Handler(TimeoutHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                report = health()
                body = json.dumps(report).encode()
                self._answer(200 if report.get("status") == "ok" else 503, body, "application/json")
            elif self.path == "/metrics" and metrics_token is not None:
                self._metrics(metrics_token)
            else:
                self._answer(404, b"{}", "application/json")

        def _metrics(self, token: str) -> None:
            offered = self.headers.get("Authorization", "")
            if hmac.compare_digest(offered.encode(), f"Bearer {token}".encode()):
                self._answer(200, metrics.exposition(), "text/plain; version=0.0.4; charset=utf-8")
            else:
                self._answer(401, b"{}", "application/json")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

    return Handler


TOKEN_ENTRY = "connector-token:"  # noqa: S105 - the name of a vault entry, not a secret
_BACKOFF = Backoff(1.0, 60.0)
_DRAIN_S = 20.0
_INSTANCE = "instance.json"
_LONGEST_INSTANCE = 100
_SENT_PAUSE_S = 5.0
_GAP_TURN_S = 60.0
_GAP_PAUSE_S = 1.0
_LOOK_AGAIN_S = 0.5
log = logs.get(__name__)


@dataclass(frozen=True)
class ConnectorOptions:
    account: str
    switchboard: str
    token: str = field(repr=False)
    quota: ProfileName | None = None
    """Which of Gmail's price lists applies; None finds the pace by trying."""
    health_port: int = 0
    config: ConnectorSettings = field(default_factory=ConnectorSettings)


@dataclass
class _LoopHealth:
    """How each loop is doing."""

    problems: dict[str, str] = field(default_factory=dict)

    def health(self) -> dict[str, Any]:
        return {"status": "failing" if self.problems else "ok", "problems": dict(self.problems)}


def token_in_vault(vault: Vault, account: str) -> str | None:
    """The token that was put into the vault for this mailbox's connector."""
    found = vault.get(f"{TOKEN_ENTRY}{normal_email(account)}")
    return None if found is None else found.decode("ascii", "replace").strip()


@asynccontextmanager
async def open_connector(
    settings: Settings, vault: Vault, options: ConnectorOptions, clock: Clock
) -> AsyncIterator[GmailPasses]:
    """The passes of one mailbox, connected to Gmail and to the Switchboard until the block ends."""
    grants = GrantStore(vault)
    email = normal_email(options.account, "account")
    grant = grants.load(email)
    profile = PROFILES[options.quota] if options.quota else None
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connected(
                credentials_for(grants, email, clock),
                limiter_for(profile, clock),
                clock,
                profile=profile,
                config=TransportConfig(api_base=grant.api_base),
            )
        )
        http = await stack.enter_async_context(http_client())
        yield GmailPasses(
            ConnectorContext(
                identity=email,
                tools=over_http(options.switchboard, options.token, http),
                mailbox=GmailMailbox(client),
                folder=_folder(settings, options),
                clock=clock,
                instance=_instance(_folder(settings, options)),
                config=options.config,
            )
        )


async def run_connector(
    settings: Settings,
    vault: Vault,
    options: ConnectorOptions,
    stop: asyncio.Event,
    announce: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Serve until stopped. `announce` gets the address of the health page once the Switchboard has answered."""
    clock = clock or SystemClock()
    token = settings.telemetry.metrics_token
    watch = _LoopHealth()
    async with AsyncExitStack() as stack:
        if not await _holds_folder(stack, _folder(settings, options), stop):
            return
        passes = await stack.enter_async_context(open_connector(settings, vault, options, clock))
        with serve_health(
            options.health_port, watch.health, None if token is None else token.get_secret_value()
        ) as address:
            await _first_beat(passes, stop, watch)
            if not stop.is_set():
                announce(address)
                await _serve(passes, stop, watch, options.config)
        passes.presence.status = "stopped"
        try:
            await passes.beat()
        except PostroomError as error:
            log.info("connector.no_last_word", problem=error.message)


def _folder(settings: Settings, options: ConnectorOptions) -> Path:
    return folder_of(settings.home, "gmail", normal_email(options.account, "account"))


def _instance(folder: Path) -> str:
    """A name that stays with the folder, which one process holds at a time: after a crash the next process takes over
    leases of this name at once."""
    path = folder / _INSTANCE
    kept = read_json(path)
    if not isinstance(kept, str) or not 0 < len(kept) <= _LONGEST_INSTANCE:
        kept = f"{socket.gethostname()[:60]} {new_id()[-8:]}"
        write_json(path, kept)
    return kept


async def _holds_folder(stack: AsyncExitStack, folder: Path, stop: asyncio.Event) -> bool:
    """Wait for a worker's job on this mailbox to end; from then on workers skip the mailbox."""
    while not stop.is_set():
        try:
            stack.enter_context(held(folder))
            return True
        except FolderShared as error:
            log.info("connector.waiting", problem=error.message)
            await _pause(stop, _LOOK_AGAIN_S)
    return False


async def _first_beat(passes: GmailPasses, stop: asyncio.Event, watch: _LoopHealth) -> None:
    """Wait for a Switchboard that cannot be reached. A refused token ends the process with what to do."""
    failures = 0
    while not stop.is_set():
        try:
            await passes.beat()
            watch.problems.pop("heartbeat", None)
            return
        except Retryable as error:
            log.warning("connector.waiting", problem=error.message)
            watch.problems["heartbeat"] = logs.clean(error.message)
            failures += 1
            await _pause(stop, _BACKOFF.delay_s(failures, error.retry_after))


async def _serve(passes: GmailPasses, stop: asyncio.Event, watch: _LoopHealth, config: ConnectorSettings) -> None:
    async def live() -> float:
        await passes.live()
        return config.live_poll_s

    async def backfill() -> float:
        await passes.backfill()
        return config.backfill_poll_s

    async def gap() -> float:
        if passes.gap_is_open:
            await passes.walk_gap(_GAP_TURN_S)
        return _GAP_PAUSE_S

    async def beat() -> float:
        passes.presence.status = "failing" if watch.problems else "running"
        await passes.beat()
        return config.heartbeat_s

    async def sent() -> float | None:
        return None if await passes.fill_sent_index() else _SENT_PAUSE_S

    loops: dict[str, Callable[[], Awaitable[float | None]]] = {
        "live": live,
        "gap": gap,
        "backfill": backfill,
        "heartbeat": beat,
        "sent": sent,
    }
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_repeated(name, turn, stop, watch), name=name) for name, turn in loops.items()]
        group.create_task(_ended(tasks, stop))


async def _ended(tasks: list[asyncio.Task[None]], stop: asyncio.Event) -> None:
    """When stopped, each task finishes what it is doing; one that takes too long is cancelled."""
    await stop.wait()
    for task in tasks:
        if task.get_name() in ("gap", "backfill", "sent"):
            task.cancel()
    _, late = await asyncio.wait(tasks, timeout=_DRAIN_S)
    for task in late:
        task.cancel()


async def _repeated(
    name: str, turn: Callable[[], Awaitable[float | None]], stop: asyncio.Event, watch: _LoopHealth
) -> None:
    """Run one turn after the other, until stopped or until a turn was the last."""
    failures = 0
    while not stop.is_set():
        try:
            wait = await turn()
            failures = 0
            if watch.problems.pop(name, None):
                log.info("connector.recovered", loop=name)
            if wait is None:
                return
        except Retryable as error:
            log.warning("connector.will_retry", loop=name, problem=error.message)
            failures += 1
            wait = _BACKOFF.delay_s(failures, error.retry_after)
        except PostroomError as error:
            # A login or a token may be put right while we wait, so the process stays.
            log.error("connector.failing", loop=name, problem=error.message)
            watch.problems[name] = logs.clean(error.message)
            wait = _BACKOFF.longest_s
        await _pause(stop, wait)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
