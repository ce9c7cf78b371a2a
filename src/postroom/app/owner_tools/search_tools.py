"""Saved searches, and the tools for them. They belong to the installation: everyone who logs in sees the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, func, select

from postroom import audit
from postroom.audit import Actor
from postroom.contract import settings as contract
from postroom.db import Database, Tx
from postroom.db.tables.mail import saved_searches
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.roles import Caller, Permission, Role
from postroom.mail.query import parse
from postroom.switchboard.toolbox import Tool

MOST_SAVED = 100


@dataclass(frozen=True, slots=True)
class SavedSearch:
    name: str
    query: str
    mailbox: str | None
    """Null: all mailboxes."""
    saved_at: datetime


def list_searches(tx: Tx) -> list[SavedSearch]:
    """By name."""
    return [_search(row) for row in tx.execute(select(saved_searches).order_by(saved_searches.c.key))]


def find_search(tx: Tx, name: str) -> SavedSearch:
    row = tx.execute(select(saved_searches).where(saved_searches.c.key == _key(name))).one_or_none()
    if row is None:
        raise NotFound("name", f"there is no saved search “{name}”{_known(list_searches(tx))}")
    return _search(row)


def save_search(tx: Tx, new: SavedSearch, who: Actor) -> SavedSearch:
    """A name in use is refused, so that no search is lost by saving another. A query with a mistake is refused too."""
    now = new.saved_at
    parse(new.query, int(now.timestamp() * 1_000), strict=True)
    tx.lock_table(saved_searches)
    taken = tx.execute(select(saved_searches.c.name).where(saved_searches.c.key == _key(new.name))).scalar()
    if taken is not None:
        raise BadInput("name", f"“{taken}” is already a saved search; choose another name or remove that one first")
    if tx.execute(select(func.count()).select_from(saved_searches)).scalar_one() >= MOST_SAVED:
        raise BadInput("name", f"there are {MOST_SAVED} saved searches already; remove one first")
    tx.execute(saved_searches.insert().values(key=_key(new.name), saved_by=who.name, **asdict(new)))
    audit.record(tx, who, "search.save", ("search", new.name), now, after=_state(new))
    return new


def remove_search(tx: Tx, name: str, who: Actor, now: datetime) -> SavedSearch:
    found = find_search(tx, name)
    tx.execute(delete(saved_searches).where(saved_searches.c.key == _key(name)))
    audit.record(tx, who, "search.remove", ("search", found.name), now, before=_state(found))
    return found


def _key(name: str) -> str:
    return " ".join(name.split()).casefold()


def _known(searches: Sequence[SavedSearch]) -> str:
    return f"; there are {', '.join(each.name for each in searches)}" if searches else "; none is saved yet"


def _state(search: SavedSearch) -> dict[str, Any]:
    return {"query": search.query, "mailbox": search.mailbox}


def _search(row: Row[Any]) -> SavedSearch:
    return SavedSearch(row.name, row.query, row.mailbox, row.saved_at)


class SearchTools:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.LIST_SEARCHES,
            Role.DASHBOARD,
            Permission.READ,
            "Saved searches, by name, and what each looks for.",
            self.list_saved,
            reads_only=True,
        )
        yield Tool(
            contract.SAVE_SEARCH,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Save a search under a name, for everyone who logs in.",
            self.save,
        )
        yield Tool(
            contract.REMOVE_SEARCH,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Remove a saved search by its name.",
            self.remove,
        )

    async def list_saved(self, caller: Caller, given: contract.ListSearchesArguments) -> contract.SavedSearchesReply:
        found = await self._database.read(list_searches)
        return contract.SavedSearchesReply(searches=[_reply(each) for each in found])

    async def save(self, caller: Caller, given: contract.SaveSearchArguments) -> contract.SavedSearchReply:
        name, query = " ".join(given.name.split()), given.query.strip()
        if not name or not query:
            raise BadInput("query" if name else "name", "is empty")

        def change(tx: Tx, who: Actor, now: datetime) -> SavedSearch:
            return save_search(tx, SavedSearch(name, query, given.endpoint_identity, now), who)

        return await self._change(caller, change)

    async def remove(self, caller: Caller, given: contract.SearchNameArguments) -> contract.SavedSearchReply:
        return await self._change(caller, lambda tx, who, now: remove_search(tx, given.name, who, now))

    async def _change(
        self, caller: Caller, change: Callable[[Tx, Actor, datetime], SavedSearch]
    ) -> contract.SavedSearchReply:
        who, now = Actor.of(caller), self._clock.now()
        return _reply(await self._database.write(lambda tx: change(tx, who, now)))


def _reply(search: SavedSearch) -> contract.SavedSearchReply:
    return contract.SavedSearchReply.model_validate(search)
