"""An account whose local triage has learned something, for tests."""

from __future__ import annotations

from typing import Any

from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.domain.money import Micros
from postroom.settings import LearningSettings, ModelSettings, SafetySettings
from postroom.triage.learning import store
from postroom.triage.learning.features import Features, features_of, hashed
from postroom.triage.learning.learner import refitted
from postroom.triage.learning.rights import TO_EARN_HIDING, upper_bound
from postroom.triage.learning.service import LearnedTriage, LearningKey
from postroom.triage.learning.store import LabelSource, NewExample
from postroom.triage.records import load_message
from tests.support.triage import TriageRig

KEY = LearningKey(b"k" * 32)
SHOP = "news@shop.example"
TO_EARN_IT = next(count for count in range(1, 1_000) if upper_bound(0, count) <= TO_EARN_HIDING)
"""Comparisons without a difference."""


def learner(check_share: float = 0.0) -> LearnedTriage:
    """With no checks unless a test asks for all of them: they are drawn by message ids, which are random.

    The setting itself has a least share, so the value is put past its check.
    """
    settings = LearningSettings().model_copy(update={"check_share": check_share})
    return LearnedTriage(KEY, settings, ModelSettings(), SafetySettings(hides_per_hour=1_000), ("mx.google.com",))


def mail_of(sender: str = SHOP, subject: str = "Offers of the week", **more: Any) -> dict[str, Any]:
    """A message as the control database has it, authenticated, of a list."""
    domain = sender.rpartition("@")[2]
    headers = {
        "from": sender,
        "to": "me@example.org",
        "list-id": f"<news.{domain}>",
        "list-unsubscribe": f"<https://{domain}/out>",
        "authentication-results": f"mx.google.com; dkim=pass header.i=@{domain}; dmarc=pass header.from={domain}",
    }
    given = {"sender_identity": sender, "subject": subject, "labels": ["INBOX", "UNREAD"], "headers": headers}
    return given | more


async def teach(office: TriageRig, answers: dict[str, str], times: int = 100) -> None:
    """Labels of the model, so many for each sender, and a fit of them."""
    account_id, key = str(office.account_id), KEY.of(str(office.account_id))
    rows = [(office.row(**mail_of(sender)), answer) for _ in range(times) for sender, answer in answers.items()]

    def write(tx: Tx) -> None:
        now = office.clock.now()
        tx.execute(messages.insert(), [row for row, _ in rows])
        store.open_learner(tx, account_id, KEY.id, learner()._teacher(tx), now)
        known: dict[str, tuple[Features, int]] = {}
        for row, answer in rows:
            sender = row["sender_identity"]
            if sender not in known:
                message = load_message(tx, row["id"])
                assert message is not None
                known[sender] = features_of(message.facts, key), hashed(key, f"domain:{sender.rpartition('@')[2]}")
            features, kind = known[sender]
            example = NewExample(account_id, row["id"], features, kind, True, None, None, False, row["labels"])
            example_id = store.add_example(tx, example, now)
            assert example_id is not None
            store.label_example(tx, account_id, example_id, answer, LabelSource.MODEL)
            store.count_asked(tx, account_id, Micros(500))
        store.save_fit(tx, account_id, refitted(store.labels_after(tx, account_id, 0)), now)

    await office.database.write(write)


async def grant(office: TriageRig, *answers: str) -> None:
    """Enough held-out comparisons without a difference."""

    def write(tx: Tx) -> None:
        for answer in answers:
            for _ in range(TO_EARN_IT):
                store.compare(tx, str(office.account_id), answer, True, office.clock.now())

    await office.database.write(write)
