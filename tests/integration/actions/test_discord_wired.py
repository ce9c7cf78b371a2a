"""Discord as the product wires it: the worker asks, the Switchboard's port takes the answer."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from postroom.actions.discord.interactions import PATH
from postroom.app import open_app
from postroom.app.serving import open_switchboard
from postroom.app.worker import open_worker
from postroom.domain.actions import ActionStatus
from postroom.settings import Settings, SwitchboardSettings
from postroom.settings.groups import DiscordSettings
from postroom.sim.discord import running_discord
from tests.support.actions import APPROVAL_OWNER, PendingApprovals
from tests.support.databases import install

pytestmark = pytest.mark.req("JB-16")


@pytest.fixture
def made(home: Path) -> Path:
    return install(home)


async def test_a_question_goes_out_and_its_answer_comes_in(made: Path) -> None:
    async with running_discord() as discord:
        settings = Settings(
            home=made,
            switchboard=SwitchboardSettings(port=0),
            discord=DiscordSettings(**discord.settings("42")),
        )
        async with open_app(settings) as app, open_switchboard(app) as switchboard:
            office = PendingApprovals(app.database, app.clock)
            action_id = await office.ask()
            async with open_worker(app, until_idle=True) as worker:
                await worker.run()
            messages = discord.board.messages.values()
            (message_id,) = [each["id"] for each in messages if each.get("components")]
            (notice,) = [each["content"] for each in messages if not each.get("components")]
            assert f"the login of `{APPROVAL_OWNER}` has ended" in notice, "its vault is empty"
            discord.board.interactions_url = f"{switchboard.url}{PATH}"
            assert (await discord.board.ping())["type"] == 1
            await discord.board.press(message_id, "Reject", "42")
            assert (await office.action(action_id)).status is ActionStatus.REJECTED


async def test_without_discord_there_is_no_endpoint(made: Path) -> None:
    settings = Settings(home=made, switchboard=SwitchboardSettings(port=0))
    async with open_app(settings) as app, open_switchboard(app) as switchboard, httpx2.AsyncClient() as http:
        assert (await http.post(f"{switchboard.url}{PATH}", content=b"{}")).status_code == 404
