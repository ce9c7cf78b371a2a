"""Putting mail to sleep. The wake-up is arranged, and committed, before the mail is hidden: no crash can lose it."""

from __future__ import annotations

from datetime import datetime

from postroom.actions import snoozes
from postroom.actions.changes import INBOX, Change, modification, snooze_hint
from postroom.actions.mailbox import LabelFinder
from postroom.actions.store import Action, save_pre_image
from postroom.db import Tx
from postroom.domain.actions import SnoozeParameters
from postroom.gmail.client import GmailClient
from postroom.queue import JobContext
from postroom.queue.model import Json
from postroom.settings import GmailSettings


class Snoozing:
    def __init__(self, labels: LabelFinder, settings: GmailSettings) -> None:
        self._labels = labels
        self._label_name = settings.snooze_label

    async def arrange(
        self, context: JobContext, client: GmailClient, action: Action, wanted: SnoozeParameters, before: frozenset[str]
    ) -> Action:
        """The label exists, the wake-up is scheduled, and the labels of before are on record: all but the first in one
        transaction."""
        label = await self._labels.find_or_create(client, action.account_id, self._label_name), self._label_name
        until = wanted.wakes_at(context.queue.clock.now())

        def write(tx: Tx) -> Action:
            now = context.queue.clock.now()
            hidden_before = snoozes.call_off_first_try(tx, context.queue, action.id) and label[0] in before
            job = snoozes.wake_job(action.account_id, action.message_id, action.id, label[0], until)
            job_id = context.queue.add(tx, job)[0].job_id
            snoozes.write(tx, action, until, label, job_id, now)
            image = _image(before, label, until, job_id)
            image["replaces"] = snoozes.replace_earlier(tx, context.queue, action, now) or hidden_before
            return save_pre_image(tx, action, image, now)

        return await context.write(write)

    def hint(self, action: Action, change: Change) -> Json:
        image = action.pre_image or {}
        if image.get("replaces"):
            # It was hidden by an earlier snooze, or by a first try of this one, whose wake-up this one has replaced:
            # the undo must not leave it so.
            change = modification(change.add | {image["label_id"]}, change.remove | {INBOX})
        return snooze_hint(change, image["until"], (image["label_id"], image["label_name"]), image["job_id"])


def _image(before: frozenset[str], label: tuple[str, str], until: datetime, job_id: str) -> Json:
    return {
        "labels": sorted(before),
        "label_id": label[0],
        "label_name": label[1],
        "until": until.isoformat(),
        "job_id": job_id,
    }
