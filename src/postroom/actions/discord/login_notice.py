"""The job `login.notify`: says in Discord that a login has ended and what mends it, and later that it is mended.

It looks at all accounts and may run any number of times: the id of the message is kept with the account.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from urllib.parse import quote

from postroom.accounts.account import AccountStatus, LoginNotice, due_login_notices, keep_login_notice
from postroom.actions.discord.client import DiscordChannel, MessageGone
from postroom.actions.discord.notify import inert, said_plainly
from postroom.mailboxes.gmail.permissions import login_command
from postroom.queue import JobContext
from postroom.queue.job import Json


class LoginNotifier:
    def __init__(self, channel: DiscordChannel | None, dashboard_url: str | None) -> None:
        self._channel = channel
        self._dashboard_url = dashboard_url

    async def __call__(self, context: JobContext) -> Json:
        if self._channel is None:
            return {"outcome": "no channel to post in"}
        due = await context.queue.database.read(due_login_notices)
        for notice in due:
            if notice.message_id is None:
                await self._tell(context, self._channel, notice)
            else:
                await self._close(context, self._channel, notice, notice.message_id)
        return {"reported": len(due)}

    async def _tell(self, context: JobContext, channel: DiscordChannel, notice: LoginNotice) -> None:
        """A message that was posted and not recorded has the same nonce, so it is not posted twice."""
        account_id = notice.account.id
        nonce = hashlib.sha256(f"{account_id} {notice.ended_at}".encode()).hexdigest()[:24]
        async with context.step(f"tell {account_id}") as step:
            message_id = await channel.post(said_plainly(ended(notice, self._dashboard_url)), nonce)
            step.result = {"message_id": message_id}
        await context.write(lambda tx: keep_login_notice(tx, account_id, message_id))

    async def _close(self, context: JobContext, channel: DiscordChannel, notice: LoginNotice, message_id: str) -> None:
        account_id = notice.account.id
        async with context.step(f"close {account_id}"):
            with suppress(MessageGone):  # who deleted it has read it
                await channel.edit(message_id, said_plainly(over(notice)))
        await context.write(lambda tx: keep_login_notice(tx, account_id, None))


def ended(notice: LoginNotice, dashboard_url: str | None) -> str:
    account = notice.account
    lines = [
        f"**Postroom**: the login of {inert(account.email)} has ended, and its jobs wait.",
        f"Log in again: {login_command(account.email, account.scopes)}",
    ]
    if dashboard_url is not None:
        lines.append(f"or at <{dashboard_url.rstrip('/')}/settings/accounts/new?email={quote(account.email)}>")
    return "\n".join(lines)


def over(notice: LoginNotice) -> str:
    if notice.account.status is AccountStatus.REMOVED:
        return f"**Postroom**: {inert(notice.account.email)} was removed."
    return f"**Postroom**: the login of {inert(notice.account.email)} is good again, and its jobs go on."
