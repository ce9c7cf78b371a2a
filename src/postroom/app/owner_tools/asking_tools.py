"""Answers questions about archived mail, for the owner and for assistants: searches the archive, asks the model once
within the budget, and gives what of its answer is supported (`triage/asking.py`). Changes nothing but what was spent;
with `source`, the mailboxes are searched first, and what matches there is taken in.

Without a model, with the model switched off, or past the ceiling, nothing is asked: the reply says why and has what the
searches found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom import kill_switch
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import account_name
from postroom.archive.search import Search, SearchHit, Snippet, Sort
from postroom.archive.service import read_apart
from postroom.contract import agent as contract
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotAllowed
from postroom.domain.money import NO_MONEY, Denied, Micros, NewCall
from postroom.domain.roles import Caller, Permission, Role
from postroom.queue import JobQueue
from postroom.settings import ModelSettings, SettingsSource
from postroom.switchboard.on_demand import SourceSearch, TakenIn
from postroom.switchboard.toolbox import Tool
from postroom.switchboard.tools.agent import searched_message
from postroom.triage import asking, records
from postroom.triage.choices import UnusableAnswer
from postroom.triage.classify import count_call
from postroom.triage.model import model_problem, open_model
from postroom.triage.questions import CallBudget, CallFailed, ModelAnswer, ModelQuestion
from postroom.triage.signs import suspicion_of
from postroom.vault import Vault

if TYPE_CHECKING:
    from postroom.triage.model_client import ModelClient

NO_ANSWER = "No answer found in these messages."
NO_MATCH = "No mail matches the words of the question."
_NO_MODEL = "No model is set up, so none was asked. Set one up under Settings in the dashboard; docs/model.md says how."
_SWITCHED_OFF = "The model is switched off, so it was not asked; `postroom model on` switches it on."
_NO_WORDS = "has no word to search for; name a person, a thing or a place"
_DESCRIPTION = (
    "Answer a question about archived mail with the owner's language model: short sentences, each with a message and "
    "a quote that stands there word for word. What no message supports is left out. Each call costs money, within the "
    "daily ceiling; without a model, `messages` has what the searches found."
)
_TAKES_IN = {Role.AGENT: Permission.FETCH, Role.DASHBOARD: Permission.BACKFILL}
"""What it takes beside `ask` to have mail taken in."""
_LONGEST_SNIPPET = 240

Mail = asking.QuotableMail[SearchHit]


@dataclass(frozen=True, slots=True)
class _Hits:
    found: tuple[SearchHit, ...]
    problems: tuple[str, ...]
    taken_in: TakenIn | None = None
    """What the mailboxes brought, if they were searched."""

    @property
    def from_source(self) -> set[tuple[str, str]]:
        """Account and key of those among the found that came because of the question."""
        new = set() if self.taken_in is None else _new_keys(self.taken_in)
        return {place for place in map(_place, self.found) if place in new}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What came of asking: the checked answer, or why there is none."""

    answer: asking.CheckedAnswer[SearchHit] | None = None
    cost: Micros | None = None
    reason: str = NO_ANSWER
    problem: str | None = None
    """Why the answer could not be used."""


class _NotAsked(Exception):
    """The model cannot or may not be asked; the message is for the one who asks."""

    def __init__(self, reason: str, cost: Micros | None = NO_MONEY) -> None:
        super().__init__(reason)
        self.cost = cost


class AskingTools:
    def __init__(
        self,
        queue: JobQueue,
        archive: ArchiveBackend,
        settings: SettingsSource,
        vault: Vault,
        budget: CallBudget,
        source: SourceSearch | None = None,
    ) -> None:
        self._queue = queue
        self._source = source or SourceSearch(queue)
        self._archive = archive
        self._settings = settings
        self._vault = vault
        self._budget = budget

    def tools(self) -> Iterator[Tool[Any, Any]]:
        for signature, role in ((contract.ASK, Role.DASHBOARD), (contract.ASK_FOR_AGENT, Role.AGENT)):
            yield Tool(signature, role, Permission.ASK, _DESCRIPTION, self.ask)

    async def ask(self, caller: Caller, given: contract.AskArguments) -> contract.AskReply:
        queries = asking.queries_for(given.question)
        if not queries:
            raise BadInput("question", _NO_WORDS)
        taken_in = await self._taken_in(caller, given) if given.source else None
        hits = await asyncio.to_thread(self._found, queries, given.endpoint_identity, taken_in)
        if not hits.found:
            return _reply("no_answer", hits, _Asked(cost=NO_MONEY, reason=NO_MATCH))
        mails = await read_apart(
            self._archive, lambda reader: [_quotable(reader, hit, given.question) for hit in hits.found]
        )
        try:
            asked = await self._asked(given.question, mails)
        except _NotAsked as refusal:
            return _reply("not_asked", hits, _Asked(cost=refusal.cost, reason=str(refusal)))
        is_answered = asked.answer is not None and asked.answer.sentences
        return _reply("answered" if is_answered else "no_answer", hits, asked)

    async def _taken_in(self, caller: Caller, given: contract.AskArguments) -> TakenIn:
        if not caller.may(needed := _TAKES_IN[caller.role]):
            raise NotAllowed(f"`source` has mail taken in, which needs a token with the permission `{needed}`.")
        return await self._source.take_in(
            asking.source_queries_for(given.question), asking.MOST_MESSAGES, given.endpoint_identity
        )

    def _found(self, queries: Sequence[str], account: str | None, taken_in: TakenIn | None) -> _Hits:
        """The best and the newest of each search in turn, until there are enough; what the mailboxes brought takes
        turns with them."""
        hits = self._in_archive(queries, account)
        if taken_in is None:
            return hits
        with self._archive.reader() as reader:
            new = _hits_of(reader, taken_in)
        better = {_place(hit): hit for hit in hits.found}  # their snippets are around the words
        found = {_place(hit): better.get(_place(hit), hit) for hit in asking.in_turn(new, hits.found)}
        return _Hits(tuple(found.values())[: asking.MOST_MESSAGES], hits.problems, taken_in)

    def _in_archive(self, queries: Sequence[str], account: str | None) -> _Hits:
        accounts = None if account is None else [account]
        found: dict[tuple[str, str], SearchHit] = {}
        problems: dict[str, None] = {}
        with self._archive.search(self._queue.clock) as search:
            for query in queries:
                try:
                    hits = _best_and_newest(search, query, accounts, problems)
                except BadInput as error:  # it takes too long, and so would the wider ones
                    problems[error.problem] = None
                    break
                for hit in hits:
                    found.setdefault(_place(hit), hit)
                if len(found) >= asking.MOST_MESSAGES:
                    break
        return _Hits(tuple(found.values())[: asking.MOST_MESSAGES], tuple(problems))

    async def _asked(self, question: str, mails: Sequence[Mail]) -> _Asked:
        settings = self._settings.now.model
        if settings.provider is None:
            raise _NotAsked(_NO_MODEL)
        # On a thread: price lists are slow to load.
        if (problem := await asyncio.to_thread(model_problem, settings, self._vault)) is not None:
            raise _NotAsked(f"The model cannot be asked. {problem}")
        async with open_model(settings, self._vault, self._queue.clock) as model:
            if model is None:
                raise _NotAsked(_NO_MODEL)
            return await self._called(model, settings, question, mails)

    async def _called(
        self, model: ModelClient, settings: ModelSettings, question: str, mails: Sequence[Mail]
    ) -> _Asked:
        """One call, reserved before and settled after. A process that dies in between leaves it at its most."""
        write, wanted = self._queue.database.write, asking.model_question(question, mails, self._queue.clock.now())
        begun = await write(lambda tx: self._begin(tx, model, settings, wanted))
        if isinstance(begun, Denied):
            raise _NotAsked(f"The model was not asked: {begun.reason}.")
        outcome = await model.ask(wanted)
        count_call(model.provider, outcome)
        if isinstance(outcome, CallFailed):
            await write(lambda tx: self._fail(tx, begun, outcome))
            raise _NotAsked(outcome.error.message, None if outcome.may_have_cost else NO_MONEY)
        asked = _read(outcome, question, mails)
        await write(lambda tx: self._end(tx, begun, outcome, asked.problem))
        return asked

    def _begin(self, tx: Tx, model: ModelClient, settings: ModelSettings, question: ModelQuestion) -> str | Denied:
        if not kill_switch.model_switch(tx).on:
            raise _NotAsked(_SWITCHED_OFF)
        most, now = model.most_for(question), self._queue.clock.now()
        given = self._budget.reserve(tx, NewCall(most, now + model.answer_limit))
        if isinstance(given, Denied):
            return given
        prompt = question.text if settings.keep_prompts_days > 0 else None
        records.begin_call(
            tx, records.NewModelCall(given.call_id, model.provider, model.name, most, prompt=prompt), now
        )
        return given.call_id

    def _end(self, tx: Tx, call_id: str, answer: ModelAnswer, problem: str | None) -> None:
        records.end_call(tx, call_id, answer, problem, is_kept=False)
        self._budget.settle(tx, call_id, answer.cost)

    def _fail(self, tx: Tx, call_id: str, failed: CallFailed) -> None:
        records.fail_call(tx, call_id, failed)
        self._budget.settle(tx, call_id, None if failed.may_have_cost else NO_MONEY)


def _read(answer: ModelAnswer, question: str, mails: Sequence[Mail]) -> _Asked:
    try:
        return _Asked(asking.read_sentences(answer, question, mails), answer.cost)
    except UnusableAnswer as unusable:
        problem = str(unusable)
        return _Asked(None, answer.cost, f"The model's answer could not be used: {problem}.", problem)


def _best_and_newest(
    search: Search, query: str, accounts: Sequence[str] | None, problems: dict[str, None]
) -> list[SearchHit]:
    pages = [
        search.search(query, accounts=accounts, limit=asking.MOST_MESSAGES, sort=sort)
        for sort in (Sort.RANK, Sort.DATE)
    ]
    for page in pages:
        problems |= {f"{problem.shard}: {problem.problem}": None for problem in page.problems}
    return list(asking.in_turn(*(page.hits for page in pages)))


def _place(hit: SearchHit) -> tuple[str, str]:
    return hit.message.account, hit.message.key


def _new_keys(taken_in: TakenIn) -> set[tuple[str, str]]:
    return {(account_name(mail.account), mail.key) for mail in taken_in.new if mail.key is not None}


def _hits_of(reader: MailReader, taken_in: TakenIn) -> list[SearchHit]:
    """What was taken in, as hits. Mail of which only the headers are kept is not in the archive."""
    found = (reader.message(mail.account, mail.key) for mail in taken_in.new if mail.key is not None)
    return [
        SearchHit(message, Snippet(" ".join(reader.body_of(message).split())[:_LONGEST_SNIPPET]))
        for message in found
        if message is not None
    ]


def _quotable(reader: MailReader, hit: SearchHit, question: str) -> Mail:
    message = hit.message
    texts = reader.attachment_texts_of(message) if message.has_attachment else []
    attachments = (asking.QuotableAttachment(name, text) for name, text in texts)
    chosen = asking.matching_attachments(question, attachments, hit.snippet.attachment)
    return asking.QuotableMail(hit, message.date, message.sender, message.subject, reader.body_of(message), chosen)


def _reply(outcome: Any, hits: _Hits, asked: _Asked) -> contract.AskReply:
    sentences, from_source = () if asked.answer is None else asked.answer.sentences, hits.from_source
    return contract.AskReply(
        outcome=outcome,
        answer=" ".join(each.text for each in sentences) or asked.reason,
        sentences=[_cited(each, _place(each.mail.source) in from_source) for each in sentences],
        dropped=0 if asked.answer is None else asked.answer.dropped,
        cost_microdollars=asked.cost,
        messages=[searched_message(hit) for hit in hits.found],
        source=None if hits.taken_in is None else _source_reply(hits.taken_in, from_source),
        problems=list(hits.problems),
    )


def _source_reply(taken_in: TakenIn, used: set[tuple[str, str]]) -> contract.AskedSourceReply:
    return contract.AskedSourceReply(
        mailboxes=list(taken_in.mailboxes),
        taken_in=len(taken_in.new),
        keys=sorted(key for _, key in used),
        under_way=list(taken_in.under_way),
        problems=list(taken_in.problems),
    )


def _cited(sentence: asking.CitedSentence[SearchHit], from_source: bool) -> contract.CitedSentenceReply:
    mail, message, attachment = sentence.mail, sentence.mail.source.message, sentence.attachment
    read = [mail.subject, mail.text, *([] if attachment is None else [attachment.text])]
    return contract.CitedSentenceReply(
        text=sentence.text,
        quote=sentence.quote,
        attachment=None if attachment is None else attachment.name or "(without a name)",
        from_source=from_source,
        key=message.key,
        account=message.account,
        date=message.date,
        sender=message.sender,
        subject=message.subject,
        addresses_model=bool(suspicion_of(read)),
    )
