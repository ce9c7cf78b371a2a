"""Every part as a process of its own on loopback: both stand-ins, the Switchboard, a connector and a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx2
from sqlalchemy import Select, select, update

from postroom.accounts.account import NewAccount, add_account
from postroom.db import Database, Tx, connect
from postroom.db.tables.mail import BACKFILL_JOBS, backfill_spend
from postroom.domain.clock import SystemClock
from postroom.domain.roles import Role
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.sim.gmail.control import TOKEN_HEADER
from postroom.vault import Vault
from tests.support.commands import PostroomProcess
from tests.support.gmail_sim import plain_client
from tests.support.mail import encoded, letter
from tests.support.switchboards import SwitchboardProcess, stranger
from tests.support.triage import INPUT_PRICE, OUTPUT_PRICE


class Mailbox(Protocol):
    """A stand-in, in this process or in another."""

    @property
    def url(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def email(self) -> str: ...


class ConnectorProcess(PostroomProcess):
    def __init__(self, home: Path, sim: Mailbox, switchboard: str, token: str, **variables: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        GrantStore(Vault(home)).save(StaticGrant(email=sim.email, api_base=sim.url, access_token=sim.token))
        given = {
            "CONNECTOR_SWITCHBOARD_URL": switchboard,
            "CONNECTOR_TOKEN": token,
            "CONNECTOR_LIVE_POLL_INTERVAL_S": "1",
            **variables,
        }
        super().__init__("connector", "gmail", "--account", sim.email, home=home, variables=given)
        self.health = ""

    async def start(self) -> None:
        await super().start()
        self.health = str((await self.ready())["health"])

    async def refusal(self) -> tuple[int, str]:
        """For one that ends by itself."""
        try:
            await self.start()
        except AssertionError as error:
            assert self.process is not None
            return self.process.returncode or 0, str(error)
        await self.kill()
        raise AssertionError("it started")


YESTERDAY, TODAY = "Etc/GMT+12", "Etc/GMT-14"
"""Time zones 26 hours apart: whatever the time, the second has a later day than the first."""
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class StandIn:
    """`postroom sim ...`, and its control endpoint."""

    process: PostroomProcess
    url: str
    token: str
    http: httpx2.AsyncClient
    email: str = ""

    async def control(self, action: str, **body: Any) -> dict[str, Any]:
        answer = await self.http.post(f"/_sim/{action}", json=body)
        answer.raise_for_status()
        answered: dict[str, Any] = answer.json()
        return answered

    async def truth(self) -> list[dict[str, Any]]:
        """Every message of a mailbox, as it truly is."""
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = await self.control("truth", hashes=False, **({"cursor": cursor} if cursor else {}))
            found += page["messages"]
            if (cursor := page["cursor"]) is None:
                return found

    async def deliver(
        self, subject: str, *, labels: Sequence[str] = ("INBOX", "UNREAD"), received: datetime | None = None
    ) -> str:
        """The new message's id."""
        at_ms = int((received or SystemClock().now()).timestamp() * 1_000)
        genuine = {"Authentication-Results": "mx.google.com; dmarc=pass header.from=friends.example"}
        given = {"raw": encoded(letter(subject, headers=genuine)), "label_ids": list(labels), "internal_date": at_ms}
        return str((await self.control("deliver", **given))["id"])


@asynccontextmanager
async def stand_in(folder: Path, *arguments: str) -> AsyncIterator[StandIn]:
    process = PostroomProcess("sim", *arguments, home=folder)
    await process.start()
    try:
        ready = await process.ready()
        root = str(ready["url"]).removesuffix("/v1")
        async with plain_client(root, **{TOKEN_HEADER: ready["control_token"]}) as http:
            yield StandIn(process, ready["url"], ready.get("token", ""), http, ready.get("email", ""))
    finally:
        await process.kill()


def model_variables(model: StandIn) -> dict[str, str]:
    return {
        "POSTROOM_MODEL__PROVIDER": "compatible",
        "POSTROOM_MODEL__NAME": "simulated-small",
        "POSTROOM_MODEL__BASE_URL": model.url,
        "POSTROOM_MODEL__API_KEY": model.token,
        "POSTROOM_MODEL__INPUT_PRICE": str(INPUT_PRICE),
        "POSTROOM_MODEL__OUTPUT_PRICE": str(OUTPUT_PRICE),
    }


@dataclass
class Deployment:
    home: Path
    gmail: StandIn
    model: StandIn
    database: Database
    variables: dict[str, str]
    switchboard: SwitchboardProcess
    worker: PostroomProcess
    second_worker: PostroomProcess
    """Beside the first, for those who start it."""
    connector: ConnectorProcess = field(init=False)
    dashboard: str = ""

    def set(self, **variables: str) -> None:
        """For every process that is started from now on."""
        for process in (self.switchboard, self.worker, self.second_worker):
            process.variables.update(variables)

    async def open(self, **connector: str) -> None:
        """Start the Switchboard, make tokens, and have a connector ready to be started."""
        await self.switchboard.start()
        self.dashboard = await self.switchboard.token(Role.DASHBOARD, name="the owner")
        token = await self.switchboard.token(Role.CONNECTOR, endpoint_identity=self.gmail.email)
        self.connector = ConnectorProcess(self.home, self.gmail, self.switchboard.url, token, **connector)

    async def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """As the dashboard, over MCP."""
        async with stranger(self.switchboard.url, self.dashboard) as call:
            return await call(tool, arguments)

    async def close(self) -> None:
        processes = [
            self.switchboard,
            self.worker,
            self.second_worker,
            *([self.connector] if hasattr(self, "connector") else []),
        ]
        for process in processes:
            await process.kill()

    async def rows(self, query: Select[Any]) -> list[Any]:
        return await self.database.read(lambda tx: list(tx.execute(query)))

    async def job(self, job_id: str) -> Any:
        def read(tx: Tx) -> Any:
            jobs = BACKFILL_JOBS[tx.dialect]
            return tx.execute(select(jobs).where(jobs.c.id == job_id)).one()

        return await self.database.read(read)

    async def spent_by_day(self, job_id: str) -> Mapping[Any, int]:
        """Reserved and settled together."""
        found = await self.rows(select(backfill_spend).where(backfill_spend.c.job_id == job_id))
        return {row.day: row.reserved_microdollars + row.settled_microdollars for row in found}

    async def let_leases_run_out(self) -> None:
        """As if the time had passed."""

        def write(tx: Tx) -> None:
            jobs = BACKFILL_JOBS[tx.dialect]
            tx.execute(update(jobs).where(jobs.c.lease_expires_at.is_not(None)).values(lease_expires_at=LONG_AGO))

        await self.database.write(write)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """The test's own time limit is the only deadline; a process that has ended is said at once."""
        while not await condition():
            for process in (self.switchboard, self.worker):
                ended = process.process is not None and not process.is_running
                assert not ended, process.log
            await asyncio.sleep(0.05)


@asynccontextmanager
async def deployment(
    path: Path, messages: int, *, seed: int = 0, url: str | None = None, **given: str
) -> AsyncIterator[Deployment]:
    """Nothing but the stand-ins runs yet; the account is known."""
    home = path / "home"
    home.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        arguments = ("gmail", "--messages", str(messages), "--seed", str(seed))
        gmail = await stack.enter_async_context(stand_in(path / "gmail", *arguments))
        model = await stack.enter_async_context(stand_in(path / "model", "model"))
        database = await connect(url or f"sqlite:///{home / 'postroom.db'}")
        stack.push_async_callback(database.close)
        account = NewAccount(gmail.email, gmail.url)
        await database.write(lambda tx: add_account(tx, account, SystemClock().now()))
        variables = {
            **model_variables(model),
            "BACKFILL_ENABLED": "true",
            "POSTROOM_RECURRING__SYNC": "off",
            "POSTROOM_WORKER__POLL_S": "0.5",
            "POSTROOM_SWITCHBOARD__ARCHIVE_WAIT_S": "60",
            **({} if url is None else {"POSTROOM_DATABASE__URL": url}),
            **given,
        }
        switchboard = SwitchboardProcess(home, **variables)
        first, second = (PostroomProcess("worker", home=home, variables=dict(variables)) for _ in range(2))
        place = Deployment(home, gmail, model, database, variables, switchboard, first, second)
        stack.push_async_callback(place.close)
        yield place
