"""Logins at Google that are under way: each waits in a task for the browser to come back, then adds the account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qs, urlsplit

from postroom import audit
from postroom.accounts.enrolment import Enrolment
from postroom.app.installation import App
from postroom.audit import Actor
from postroom.domain.errors import NotFound, PostroomError, Retryable
from postroom.domain.ids import new_id
from postroom.mailboxes.gmail.client_secrets import ClientSecrets
from postroom.mailboxes.gmail.credentials import OAuthGrant, log_in, normal_email
from postroom.mailboxes.gmail.transport import GOOGLE
from postroom.mailboxes.reachability import require_safe_url
from postroom.telemetry import logs

log = logs.get(__name__)

_MOST_UNDER_WAY = 5
_MOST_REMEMBERED = 50


class GoogleLoginStage(StrEnum):
    WAITING = "waiting"
    ADDED = "added"
    REFUSED = "refused"


@dataclass
class GoogleLogin:
    email: str
    id: str = field(default_factory=new_id)
    url: str = ""
    """Google's page, with what it needs to send the browser back."""
    stage: GoogleLoginStage = GoogleLoginStage.WAITING
    said: str = ""
    """What is odd about the account, or why there is none."""

    @property
    def port(self) -> int | None:
        """Where on this machine the browser comes back to."""
        [back] = parse_qs(urlsplit(self.url).query).get("redirect_uri", [""])
        return urlsplit(back).port


@dataclass(frozen=True)
class WantedLogin:
    client: ClientSecrets
    email: str
    api_base: str = GOOGLE
    full_access: bool = False


class GoogleLogins:
    def __init__(self) -> None:
        self._logins: dict[str, GoogleLogin] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __getitem__(self, login_id: str) -> GoogleLogin:
        try:
            return self._logins[login_id]
        except KeyError:
            raise NotFound("login", "this login is over; begin it again") from None

    async def begin(self, app: App, wanted: WantedLogin, who: Actor) -> GoogleLogin:
        """The login, as soon as there is a page to open. A second one for the same mailbox takes the first's place."""
        email, api_base = normal_email(wanted.email), require_safe_url(wanted.api_base, "api_base")
        await Enrolment(app.database, app.grants, app.clock).refuse_known_elsewhere(email, api_base)
        await self._make_room(email)
        login = GoogleLogin(email)
        shown = asyncio.Event()

        def show(url: str) -> None:
            login.url = url
            shown.set()

        async def obtain() -> OAuthGrant:
            return await log_in(
                wanted.client, email, app.clock, show=show, api_base=api_base, full_access=wanted.full_access
            )

        self._logins[login.id] = login
        task = self._tasks[login.id] = asyncio.create_task(self._finish(app, login, obtain(), who))

        def over(_: object) -> None:
            self._tasks.pop(login.id, None)
            shown.set()

        task.add_done_callback(over)
        await shown.wait()
        return login

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await _called_off(list(self._tasks.values()))

    async def _finish(self, app: App, login: GoogleLogin, obtained: Awaitable[OAuthGrant], who: Actor) -> None:
        try:
            account, oddities = await app.take_in(await obtained, who)
        except PostroomError as error:
            login.said, login.stage = logs.clean(error.message), GoogleLoginStage.REFUSED
        except Exception:
            log.exception("dashboard.login_failed", account=login.email)
            login.said, login.stage = "This is a fault in Postroom; its log says more.", GoogleLoginStage.REFUSED
        else:
            login.said, login.stage = " ".join(map(logs.clean, oddities)), GoogleLoginStage.ADDED
            log.info("account.added", account=account.email)
        # Last of all: the page that waits renews itself when the audit log grows.
        told = {"email": login.email, "stage": str(login.stage), "said": login.said}
        subject, now = ("login", login.id), app.clock.now()
        await app.database.write(lambda tx: audit.record(tx, who, "account.login", subject, now, after=told))

    async def _make_room(self, email: str) -> None:
        earlier = [id for id in self._tasks if self._logins[id].email == email]
        await _called_off([self._tasks[id] for id in earlier])
        for login in (self._logins[id] for id in earlier):
            if login.stage is GoogleLoginStage.WAITING:
                login.said, login.stage = (
                    "A later login to the same mailbox took the place of this one.",
                    GoogleLoginStage.REFUSED,
                )
        if len(self._tasks) >= _MOST_UNDER_WAY:
            raise Retryable("Several logins are under way already. Finish one of them, or wait a few minutes.")
        over = [id for id in self._logins if id not in self._tasks]
        for id in over[: max(0, len(self._logins) - _MOST_REMEMBERED)]:
            del self._logins[id]


async def _called_off(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
