"""`postroom connector gmail` as a person starts it, on a home of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from postroom.gmail.grants import GrantStore, StaticGrant
from postroom.vault import Vault
from tests.support.processes import PostroomProcess


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
