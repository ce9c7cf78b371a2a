"""The job `labels.sync.gmail`: the labels of a mailbox as they are now. Rules that used a deleted one are disabled,
and what the model is told about it is named for a person to look at.

What the owner wrote about a label stays, and a label that got another name stays the same label. An answer that cannot
be the whole list deletes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from postroom.accounts.jobs import account_of
from postroom.accounts.labels import take_listing
from postroom.actions.changes import INBOX
from postroom.actions.mailbox import Mailboxes
from postroom.db import Tx
from postroom.domain.errors import Retryable
from postroom.gmail.resources import Label
from postroom.queue import JobContext
from postroom.queue.model import Json
from postroom.telemetry import logs

log = logs.get(__name__)


class DisableRules(Protocol):
    def __call__(self, tx: Tx, account_id: str, label_id: str, label_name: str, now: datetime) -> Sequence[str]:
        """The label was deleted: disable every rule that looks at it or sets it. The names of those that were."""


class GuidanceNaming(Protocol):
    def __call__(self, tx: Tx, account_id: str, label_name: str) -> Sequence[str]:
        """The names of what the model is told in words that speak of this label."""


class LabelsSyncHandler:
    def __init__(self, mailboxes: Mailboxes, disable_rules: DisableRules, guidance_naming: GuidanceNaming) -> None:
        self._mailboxes = mailboxes
        self._disable_rules = disable_rules
        self._guidance_naming = guidance_naming

    async def __call__(self, context: JobContext) -> Json:
        account = await account_of(context)
        client = await self._mailboxes.of(account)
        asked_at = context.queue.clock.now()
        async with context.step("list") as step:
            listed = plausible(await client.list_labels())
            step.result = {"labels": len(listed)}
        await context.complete(lambda tx: self._take(tx, context, account.id, listed, asked_at))
        return None

    def _take(self, tx: Tx, context: JobContext, account_id: str, listed: Sequence[Label], asked_at: datetime) -> Json:
        now = context.queue.clock.now()
        effect = take_listing(tx, account_id, listed, asked_at, now)
        disabled = [
            name
            for label in effect.deleted
            for name in self._disable_rules(tx, account_id, label.label_id, label.name, now)
        ]
        # Words are not disabled: only a person can say whether they still hold without the label.
        speak_of_it = [name for label in effect.deleted for name in self._guidance_naming(tx, account_id, label.name)]
        if effect.deleted:
            told = {"rules_disabled": len(disabled), "guidance_naming_them": len(speak_of_it)}
            log.info("labels.deleted", account=account_id, labels=len(effect.deleted), **told)
        return {
            "labels": len(listed),
            "added": effect.added,
            "renamed": [list(each) for each in effect.renamed],
            "deleted": [label.name for label in effect.deleted],
            "disabled_rules": disabled,
            "guidance_to_look_at": speak_of_it,
        }


def plausible(listed: Sequence[Label]) -> Sequence[Label]:
    """Every mailbox has an inbox; a list without one is not the list."""
    if not any(label.id == INBOX for label in listed):
        raise Retryable(f"Gmail's list of {len(listed)} labels lacks the inbox, so it is not believed.")
    return listed
