"""Local triage as the classifier uses it: an opinion before the model is asked, and what became of it afterwards.

`consider` only reads. `record` writes in the transaction of the decision, so that a repeated attempt counts nothing
twice. The job `learning.fit` makes an account's weights anew, under the lease of its queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select

from postroom import kill_switch
from postroom.accounts.account_jobs import account_of
from postroom.db import Database, Prepared, Tx
from postroom.db.tables.triage import model_rules
from postroom.domain.jobs import LEARNING_FIT
from postroom.domain.money import Micros
from postroom.queue import JobContext, JobQueue, NewJob
from postroom.queue.job import Json
from postroom.settings import LearningSettings, ModelSettings, SafetySettings
from postroom.telemetry import logs
from postroom.triage import records
from postroom.triage.briefing import briefing_for, contacts_among
from postroom.triage.choices import ModelChoice
from postroom.triage.decision import DecidedBy, Decision
from postroom.triage.guidance import directions_in_force
from postroom.triage.learning import rights, store
from postroom.triage.learning.features import Features, features_of, hashed
from postroom.triage.learning.learner import Label, Learned, Opinion, is_due, refitted
from postroom.triage.learning.store import LabelSource, NewExample
from postroom.triage.prompt import Briefing
from postroom.triage.records import TriageMessage
from postroom.triage.safety import decided_by_model, signs_of
from postroom.vault import Vault

log = logs.get(__name__)

KEY_ENTRY = "learning.key"


@dataclass(frozen=True)
class LearningKey:
    """What facts are hashed with: one secret of the installation, from which each account gets a key of its own."""

    secret: bytes

    @property
    def id(self) -> str:
        return hashlib.sha256(b"learning" + self.secret).hexdigest()[:16]

    def of(self, account_id: str) -> bytes:
        return hmac.digest(self.secret, account_id.encode(), "sha256")

    @classmethod
    def open(cls, vault: Vault) -> LearningKey:
        """The installation's, made by its first use."""
        with vault.locked(KEY_ENTRY):
            kept = vault.get(KEY_ENTRY)
            if kept is None:
                kept = secrets.token_bytes(32)
                vault.put(KEY_ENTRY, kept)
        return cls(kept)


@dataclass(frozen=True, slots=True)
class Consideration:
    """What local triage makes of one message."""

    features: Features
    about: rights.Circumstances
    briefing: Briefing
    """What the model gets beside the message."""
    kind: int | None
    teacher: str
    opinion: Opinion | None
    is_sure: bool = False
    """Of its opinion, and nothing keeps it from deciding but the right to."""
    decision: Decision | None = None
    """Where it has the right."""
    is_check: bool = False
    """It may decide, but the model is asked all the same, to compare the two."""


@dataclass(frozen=True, slots=True)
class LearningNews:
    """What the database has beyond what this process knows; nothing, where nothing was learned."""

    fitted: Learned | None
    """As it was last fitted, where that is not known here yet."""
    labels: Sequence[Label]
    fitted_seq: int


@dataclass
class _Known:
    learned: Learned
    fitted_seq: int


class LearnedTriage:
    """`servers` are those whose `Authentication-Results` are believed."""

    def __init__(
        self,
        key: LearningKey,
        settings: LearningSettings,
        model: ModelSettings,
        safety: SafetySettings,
        servers: Collection[str],
    ) -> None:
        self._key = key
        self._settings = settings
        self._model = model
        self._safety = safety
        self._servers = servers
        self._known: dict[str, _Known] = {}

    def news(self, tx: Tx, message: TriageMessage) -> LearningNews | None:
        """What came since; None where it is switched off, or the message is of no account."""
        account_id = message.account_id
        if account_id is None:
            return None
        return tx.shared(("news", account_id), lambda: self._news(tx, account_id))

    async def consider(
        self, database: Database, message: TriageMessage, news: LearningNews, wanted: int
    ) -> Consideration:
        """`wanted` are the earlier messages of the conversation that count."""
        account_id = str(message.account_id)
        learned = self._updated(account_id, news)
        features = features_of(message.facts, self._key.of(account_id))
        opinion = None if learned is None else learned.opinion(features)
        return await database.read(lambda tx: self._considered(tx, message, wanted, features, opinion))

    def _news(self, tx: Tx, account_id: str) -> LearningNews | None:
        if not self.is_on(tx):
            return None
        state = store.find_learner(tx, account_id)
        if state is None or state.key_id != self._key.id:
            return _NOTHING_LEARNED
        known = self._known.get(account_id)
        is_current = known is not None and known.fitted_seq == state.fitted_seq and known.learned.seq <= state.last_seq
        fitted = None if is_current else store.load_learned(tx, account_id)
        seq = fitted.seq if fitted is not None else known.learned.seq if known is not None else 0
        labels = store.labels_after(tx, account_id, seq) if seq < state.last_seq else []
        return LearningNews(fitted, labels, state.fitted_seq)

    def _updated(self, account_id: str, news: LearningNews) -> Learned | None:
        """Without waiting for anything: another message may be considered at the same time."""
        if news is _NOTHING_LEARNED:
            return None
        if news.fitted is not None:
            self._known[account_id] = _Known(news.fitted, news.fitted_seq)
        learned = self._known[account_id].learned
        learned.take(label for label in news.labels if label.seq > learned.seq)
        return learned

    def _considered(
        self, tx: Tx, message: TriageMessage, wanted: int, features: Features, opinion: Opinion | None
    ) -> Consideration:
        account_id = str(message.account_id)
        key, briefing = self._key.of(account_id), briefing_for(tx, message, wanted)
        about = self._circumstances(tx, message, briefing)
        teacher = tx.shared("teacher", lambda: self._teacher(tx))
        kind = None if about.vouched_for is None else hashed(key, f"domain:{about.vouched_for}")
        if opinion is None or not self._is_sure(tx, account_id, opinion, about, kind, briefing):
            return Consideration(features, about, briefing, kind, teacher, opinion)
        state = store.find_learner(tx, account_id)
        has_right = store.right_to(tx, account_id, opinion.answer).may_decide
        if state is None or state.teacher != teacher or not has_right:
            return Consideration(features, about, briefing, kind, teacher, opinion, is_sure=True)
        decision = self._decision(message, briefing, opinion, about)
        check = self._is_check(key, message.id)
        return Consideration(features, about, briefing, kind, teacher, opinion, True, decision, check)

    def is_on(self, tx: Tx) -> bool:
        """The model's switch is its switch too: an owner who stops the model wants nothing decided in its manner."""
        return self._settings.enabled and kill_switch.learning_switch(tx).on and kill_switch.model_switch(tx).on

    def record(
        self, tx: Tx, queue: JobQueue, message: TriageMessage, considered: Consideration, decision: Decision
    ) -> None:
        """What the decision means for what is learned. Decisions of rules never come here."""
        account_id, now = str(message.account_id), queue.clock.now()
        store.open_learner(tx, account_id, self._key.id, considered.teacher, now)
        by_model = decision.source is DecidedBy.MODEL and not decision.needs_review
        held_out = considered.is_check and by_model
        example_id = store.add_example(tx, self._example(message, considered, held_out), now)
        if example_id is None:
            return
        if decision.source is DecidedBy.LEARNED:
            state = store.find_learner(tx, account_id)
            saved = Micros(0) if state is None else state.cost_of_asking
            answer = rights.answer_of(decision.actions[0].wanted if decision.actions else None)
            store.count_decided(tx, account_id, answer, saved, now)
        if not by_model:
            return
        store.count_asked(tx, account_id, records.spent_on(tx, message.id))
        answer = rights.answer_of(decision.actions[0].wanted if decision.actions else None)
        if considered.is_sure and considered.opinion is not None:
            guess = considered.opinion.answer
            right = store.compare(tx, account_id, guess, guess == answer, now)
            log.info("learning.compared", agreed=guess == answer, state=str(right.state))
        if considered.about.is_teachable and not held_out:
            store.label_example(tx, account_id, example_id, answer, LabelSource.MODEL)
            enqueue_fit(tx, queue, account_id)

    def _is_sure(
        self,
        tx: Tx,
        account_id: str,
        opinion: Opinion,
        about: rights.Circumstances,
        kind: int | None,
        briefing: Briefing,
    ) -> bool:
        if opinion.confidence < self._settings.sure or not rights.is_offered(opinion.answer, briefing.offer):
            return False
        least = self._settings.least_seen
        seen = store.count_kind(tx, account_id, kind, opinion.answer, least)
        return rights.why_not_alone(about, opinion.answer, seen, least) is None

    def _is_check(self, key: bytes, message_id: str) -> bool:
        """The same for every attempt at a message, and known to no one who writes to the owner."""
        return hashed(key, f"check:{message_id}") % 10_000 < self._settings.check_share * 10_000

    def _circumstances(self, tx: Tx, message: TriageMessage, briefing: Briefing) -> rights.Circumstances:
        return rights.Circumstances(
            vouched_for=rights.vouched_domain(message.facts, self._servers),
            contacts=contacts_among(tx, message),
            answers_owner=message.answers_owner or any(each.by_owner for each in briefing.thread),
            signs=signs_of(message.mail, briefing.thread),
            is_personal=rights.looks_personal(message.facts),
        )

    def _decision(
        self, message: TriageMessage, briefing: Briefing, opinion: Opinion, about: rights.Circumstances
    ) -> Decision:
        facts = ", ".join(opinion.because) or "all of its headers together"
        choice = ModelChoice(
            rights.wanted_of(opinion.answer),
            opinion.confidence,
            f"Such mail was decided like this before. What spoke for it: {facts}.",
        )
        decision = decided_by_model(
            choice, message.mail, briefing, self._safety, source=DecidedBy.LEARNED, signs=about.signs
        )
        return replace(decision, explanation={"because": list(opinion.because)})

    def _teacher(self, tx: Tx) -> str:
        """Who answers, and by which instructions: where either changes, so may the answers."""
        spoken = list(directions_in_force(tx))  # shared
        spoken += [f"{row.scope} {row.scope_ref} {row.name} {row.text}" for row in tx.run(_GUIDANCE, {})]
        return hashlib.sha256("\0".join([str(self._model.name), *spoken]).encode()).hexdigest()[:16]

    def _example(self, message: TriageMessage, considered: Consideration, held_out: bool) -> NewExample:
        opinion = considered.opinion
        return NewExample(
            account_id=str(message.account_id),
            message_id=message.id,
            features=considered.features,
            kind=considered.kind,
            is_teachable=considered.about.is_teachable,
            guess=None if opinion is None else opinion.answer,
            confidence=None if opinion is None else opinion.confidence,
            held_out=held_out,
            labels_then=message.mail.labels,
        )


_NOTHING_LEARNED = LearningNews(None, (), 0)
_GUIDANCE = Prepared(select(model_rules).where(model_rules.c.enabled).order_by(model_rules.c.name))


def enqueue_fit(tx: Tx, queue: JobQueue, account_id: str) -> None:
    """Where enough labels came since the last fit."""
    state = store.find_learner(tx, account_id)
    if state is not None and is_due(state.last_seq, state.fitted_seq):
        queue.add(tx, fit_job(account_id))


def fit_job(account_id: str) -> NewJob:
    return NewJob(LEARNING_FIT.name, {"account_id": account_id}, key=f"{LEARNING_FIT.name}:{account_id}")


async def fit(context: JobContext) -> Json:
    """The job `learning.fit`. Its key and its lease leave one fitter to an account; a late one is refused."""
    account = await account_of(context)
    labels = await context.queue.database.read(lambda tx: store.labels_after(tx, account.id, 0))
    learned = await asyncio.to_thread(refitted, labels[-store.MOST_EXAMPLES :])

    def finish(tx: Tx) -> Json:
        store.save_fit(tx, account.id, learned, context.queue.clock.now())
        return {"labels": len(labels), "up_to": learned.seq}

    await context.complete(finish)
    return None
