"""A change that a person makes at the terminal: one transaction, in their name; with `--dry-run`, rehearsed to its end
and taken back, so that what would be refused is refused then too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import me, with_app
from postroom.db import Tx

T = TypeVar("T")


class _Rehearsed(Exception):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def change(transaction: Callable[[Tx, Actor, datetime], T], *, dry_run: bool) -> T:
    who = Actor.of(me())

    async def run(app: App) -> T:
        def whole(tx: Tx) -> T:
            result = transaction(tx, who, app.clock.now())
            if dry_run:
                raise _Rehearsed(result)
            return result

        return await app.database.write(whole)

    try:
        return with_app(run)
    except _Rehearsed as rehearsed:
        result: T = rehearsed.result
        return result
