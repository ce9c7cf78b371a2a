"""Which accounts a command is about: the one that was named, or all that are in use."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.accounts.store import Account, get_account, list_accounts
from postroom.app import App
from postroom.domain.errors import NotFound

AccountOption = Annotated[str | None, typer.Option("--account", help="Only this account; all accounts otherwise.")]


async def chosen_accounts(app: App, email: str | None) -> list[Account]:
    if email is not None:
        return [await app.database.read(lambda tx: get_account(tx, email))]
    accounts = await app.database.read(list_accounts)
    if not accounts:
        raise NotFound("account", "there are none yet; `postroom account add gmail --help` says how to add one")
    return accounts
