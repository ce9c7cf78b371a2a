"""The mailbox as actions use it: changes applied with as few calls as they need, labels found by name or by id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, assert_never

from postroom.accounts.labels import find_label, remember_labels
from postroom.accounts.store import Account
from postroom.actions.changes import Call, Change, Labels
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal
from postroom.gmail.client import GmailClient
from postroom.gmail.errors import Refused
from postroom.gmail.resources import Format, Label

_LOOKS_LIKE_AN_ID = re.compile(r"Label_\d+")
_CONFLICT = 409


class Mailboxes(Protocol):
    async def of(self, account: Account) -> GmailClient:
        """A client for the account, in the lane of what a person waits for; `at` gives another."""


class LabelGone(Fatal):
    """The mailbox no longer has this label."""


async def labels_now(client: GmailClient, gmail_id: str) -> Labels:
    return (await client.get_message(gmail_id, Format.MINIMAL)).label_ids


async def apply(client: GmailClient, gmail_id: str, change: Change, labels: Labels) -> Labels:
    """Make the change; the labels afterwards. `labels` are those that it has, as far as they are known."""
    for call in change.calls:
        match call:
            case Call.TRASH:
                labels = (await client.trash_message(gmail_id)).label_ids
            case Call.UNTRASH:
                labels = (await client.untrash_message(gmail_id)).label_ids
            case Call.DELETE:
                await client.delete_message(gmail_id)
                labels = frozenset()
            case Call.MODIFY:
                add, remove = change.add - labels, change.remove & labels
                if add or remove:
                    labels = await _modified(client, gmail_id, add, remove)
            case _:
                assert_never(call)
    return labels


async def _modified(client: GmailClient, gmail_id: str, add: Labels, remove: Labels) -> Labels:
    try:
        return (await client.modify_message(gmail_id, add=add, remove=remove)).label_ids
    except Refused as error:
        if "label" in error.message.lower():
            names = ", ".join(sorted(add | remove))
            raise LabelGone(f"Gmail does not know the label {names} (any more), or gives it to nobody.") from error
        raise


class LabelFinder:
    """From a label's name or id to its id: first as the database knows it, then as Gmail does."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def find(self, client: GmailClient, account_id: str, text: str) -> str | None:
        known = await self._database.read(lambda tx: find_label(tx, account_id, text))
        if known is not None:
            return known.label_id
        return await self._find_at_source(client, account_id, text)

    async def find_or_create(self, client: GmailClient, account_id: str, text: str) -> str:
        """A name that nobody knows becomes a label. Who creates it at the same time is not in the way."""
        found = await self.find(client, account_id, text)
        if found is not None:
            return found
        if _LOOKS_LIKE_AN_ID.fullmatch(text):
            raise LabelGone(f"There is no label with the id {text} in the mailbox; it may have been deleted.")
        try:
            created = await client.create_label(text)
        except Refused as error:
            if error.status != _CONFLICT:
                raise
            found = await self._find_at_source(client, account_id, text)
            if found is None:
                raise
            return found
        await self._remember(account_id, [created])
        return created.id

    async def _find_at_source(self, client: GmailClient, account_id: str, text: str) -> str | None:
        listed = await client.list_labels()
        await self._remember(account_id, listed)
        by_id = {label.id: label.id for label in listed}
        by_name = {label.name.lower(): label.id for label in listed}
        return by_id.get(text) or by_name.get(text.lower())

    async def _remember(self, account_id: str, found: Sequence[Label]) -> None:
        await self._database.write(lambda tx: remember_labels(tx, account_id, found, self._clock.now()))
