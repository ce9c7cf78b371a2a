"""Tools for actions: act, answer approvals, undo, retry, cancel, and change when snoozed mail returns; and for mail
that a person has to look at: list it, mark it as done, have it judged again. An agent lists actions and approvals, and
proposes; a person decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from postroom.accounts.account import find_account, list_accounts
from postroom.actions import approvals, browsing, requests, snoozes, undo, wording
from postroom.actions.approvals import ApprovalVerdict
from postroom.actions.browsing import ActionFilter, Listed
from postroom.actions.lifecycle import mailbox_of_action
from postroom.actions.requests import ActionTarget, MailKey
from postroom.actions.undo import UndoSpan
from postroom.archive.backend import ArchiveBackend
from postroom.audit import Actor
from postroom.contract import actions as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Tx
from postroom.domain.actions import ActionStatus, Consequence, WantedAction, consequence_of, parse_action
from postroom.domain.errors import BadInput, NotAllowed, NotFound
from postroom.domain.ids import normal_email
from postroom.domain.roles import Caller, Permission, Role
from postroom.queue import JobQueue
from postroom.settings import SafetySettings
from postroom.switchboard.toolbox import Tool
from postroom.triage import review
from postroom.triage.review import ReviewFilter, ReviewItem

T = TypeVar("T")
Change = Callable[[Tx, JobQueue, str, Actor], T]


class ActionTools:
    def __init__(self, queue: JobQueue, archive: ArchiveBackend, safety: SafetySettings) -> None:
        self._queue = queue
        self._archive = archive
        self._patience = timedelta(days=safety.approval_days)

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.ANSWER,
            Role.DASHBOARD,
            Permission.APPROVE,
            "Approve or reject an action that needs a person's answer. Each question is answered once.",
            self.answer,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.ANSWER_MANY,
            Role.DASHBOARD,
            Permission.APPROVE,
            "Approve or reject several actions. One that was answered meanwhile does not keep the others from it.",
            self.answer_many,
            keeps_to_mailbox=True,
        )
        yield _act(
            contract.TAKE_BACK,
            "Take back what a person approved or ordered: before it begins it is not done, afterwards it is undone.",
            self.take_back,
        )
        yield _act(
            contract.DO,
            "Act on a message that is still in its mailbox, also reply to it or forward it, as a person's own order.",
            self.do,
        )
        yield _act(
            contract.DO_MANY,
            "Do the same to many messages, each with an action of its own. Those that cannot be acted on are named.",
            self.do_many,
        )
        yield _act(contract.UNDO, "Let a worker undo an action; the undo is an action of its own.", self.undo)
        yield _act(
            contract.RETRY, "Try a failed action again as it was first wanted.", self._changing(requests.retry_action)
        )
        yield _act(
            contract.DISMISS,
            "Dismiss a failed action: it needs no more attention.",
            self._changing(requests.dismiss_action),
        )
        yield _act(contract.CANCEL, "Cancel an action that has not started.", self._changing(requests.cancel_action))
        yield _act(contract.WAKE, "Return snoozed mail to the inbox now.", self._changing(snoozes.wake_now))
        yield _act(contract.SNOOZE, "Return snoozed mail to the inbox at another time.", self.snooze)
        yield Tool(
            contract.UNDO_ALL,
            Role.DASHBOARD,
            Permission.ACT,
            "Let a worker undo everything that the model, or rules, did in a period, the newest first.",
            self.undo_all,
        )
        yield from self._agent_tools()

    def _agent_tools(self) -> Iterator[Tool[Any, Any]]:
        def tool(
            signature: ToolSignature[Any, Any], permission: Permission, text: str, run: Callable[[Caller, Any], Any]
        ) -> Tool[Any, Any]:
            reads_only = permission is Permission.READ
            return Tool(
                signature, Role.AGENT, permission, text, run, reads_only=reads_only, keeps_to_mailbox=not reads_only
            )

        yield tool(
            contract.LIST_FOR_AGENT,
            Permission.READ,
            "What was done with mail and why, newest first, with the id that undo_action takes.",
            self.list_actions,
        )
        yield tool(
            contract.APPROVALS_FOR_AGENT,
            Permission.READ,
            "Actions that need a person's approval, newest first. Only a person can approve them.",
            self.list_approvals,
        )
        yield tool(
            contract.PROPOSE,
            Permission.PROPOSE,
            "Propose an action on a message. A person approves or rejects it; nothing is done before.",
            self.propose,
        )
        yield tool(
            contract.UNDO_FOR_AGENT,
            Permission.UNDO,
            "Let a worker undo an action. The undo is an action of its own.",
            self.undo,
        )

    async def do(self, caller: Caller, given: contract.ActArguments) -> contract.ActionReply:
        """As a person's own order, it needs no approval; so a token needs the right to approve for what goes far."""
        _require_right_to_do(caller, parse_action(given.type, given.parameters, "parameters"))
        return contract.ActionReply(action=await self._order(caller, given, self._do))

    def _do(self, tx: Tx, target: ActionTarget, wanted: WantedAction, who: Actor) -> str:
        if target.message_id is not None:
            review.mark_message_done(tx, target.message_id, who, self._queue.clock.now())
        return requests.request_action(tx, self._queue, target, wanted, who)

    async def do_many(self, caller: Caller, given: contract.ActOnManyArguments) -> contract.ActOnManyReply:
        """In one transaction. Refused as a whole only if nothing could be done to any of them."""
        wanted = parse_action(given.type, given.parameters, "parameters")
        if wanted.type in requests.ONE_BY_ONE:
            raise BadInput("type", f"{wanted.type} cannot be taken back, so it is done to one message at a time")
        _require_right_to_do(caller, wanted)
        names = list(
            dict.fromkeys(MailKey(normal_email(each.mailbox, "messages"), each.key) for each in given.messages)
        )
        mine = caller.endpoint_identity
        if mine is not None and any(each.mailbox != mine for each in names):
            raise NotAllowed(f"This token is for {mine} only.")
        targets = await requests.find_targets(self._queue.database, self._archive, names)
        refused = {name: found for name, found in targets.items() if isinstance(found, str)}
        if len(refused) == len(names):
            raise BadInput("messages", next(iter(refused.values())))
        possible = {name: found for name, found in targets.items() if not isinstance(found, str)}
        made = await self._queue.database.write(
            lambda tx: {name: self._do(tx, target, wanted, Actor.of(caller)) for name, target in possible.items()}
        )
        replies = [
            contract.MailActedOnReply(mailbox=n.mailbox, key=n.key, action=made.get(n), reason=refused.get(n))
            for n in names
        ]
        return contract.ActOnManyReply(messages=replies)

    async def propose(self, caller: Caller, given: contract.ProposeActionArguments) -> contract.ActionReply:
        def order(tx: Tx, target: ActionTarget, wanted: WantedAction, who: Actor) -> str:
            return requests.propose_action(tx, self._queue, target, wanted, given.why, who, self._patience)

        return contract.ActionReply(action=await self._order(caller, given, order))

    async def _order(
        self,
        caller: Caller,
        given: contract.ActArguments,
        order: Callable[[Tx, ActionTarget, WantedAction, Actor], str],
    ) -> str:
        wanted = parse_action(given.type, given.parameters, "parameters")
        mine, database = caller.endpoint_identity, self._queue.database
        target = await requests.find_target(database, self._archive, given.message, mine)
        return await database.write(lambda tx: order(tx, target, wanted, Actor.of(caller)))

    async def list_actions(self, caller: Caller, given: contract.ListActionsArguments) -> contract.ActionsReply:
        def read(tx: Tx) -> contract.ActionsReply:
            mailbox = given.endpoint_identity
            account = None if mailbox is None else find_account(tx, normal_email(mailbox, "endpoint_identity"))
            if mailbox is not None and account is None:
                raise NotFound("endpoint_identity", "is no mailbox of this installation")
            which = ActionFilter(
                status=given.status,
                origin=given.by,
                account_id=None if account is None else account.id,
                before_id=given.after,
                limit=given.limit,
            )
            page = browsing.look_back(tx, which)
            return contract.ActionsReply(actions=_listed(tx, page.found), next=page.next)

        return await self._queue.database.read(read)

    async def list_approvals(self, caller: Caller, given: contract.ListApprovalsArguments) -> contract.ActionsReply:
        which = contract.ListActionsArguments(status=ActionStatus.APPROVED_PENDING, **given.model_dump())
        return await self.list_actions(caller, which)

    async def answer(self, caller: Caller, given: contract.AnswerArguments) -> contract.AnsweredReply:
        verdict, note = ApprovalVerdict(given.verdict), given.note
        outcome = await self._change(
            caller, given.action, lambda tx, queue, id, who: approvals.answer(tx, queue, id, verdict, who, note=note)
        )
        return contract.AnsweredReply(counted=outcome.counted, standing=outcome.said)

    async def answer_many(self, caller: Caller, given: contract.AnswerManyArguments) -> contract.AnsweredManyReply:
        verdict, note = ApprovalVerdict(given.verdict), given.note

        def answer(tx: Tx, queue: JobQueue, action_id: str, who: Actor) -> contract.OneAnswerReply:
            outcome = approvals.answer(tx, queue, action_id, verdict, who, note=note)
            return contract.OneAnswerReply(action=action_id, counted=outcome.counted, standing=outcome.said)

        return await self._each(caller, given.actions, answer)

    async def take_back(self, caller: Caller, given: contract.TakeBackArguments) -> contract.AnsweredManyReply:
        def take_back(tx: Tx, queue: JobQueue, action_id: str, who: Actor) -> contract.OneAnswerReply:
            standing = undo.take_back(tx, queue, action_id, who)
            return contract.OneAnswerReply(action=action_id, counted=True, standing=standing)

        return await self._each(caller, given.actions, take_back)

    async def _each(
        self, caller: Caller, ids: Sequence[str], change: Change[contract.OneAnswerReply]
    ) -> contract.AnsweredManyReply:
        """Each in a transaction of its own: one that cannot be changed is reported, and the others are changed. Nothing
        is, where one of them is another mailbox's than that of the caller."""
        chosen = list(dict.fromkeys(ids))

        def check(tx: Tx) -> None:
            for action_id in chosen:
                _require_own(tx, caller, action_id)

        await self._queue.database.read(check)

        async def one(action_id: str) -> contract.OneAnswerReply:
            try:
                return await self._change(caller, action_id, change)
            except BadInput as error:
                return contract.OneAnswerReply(action=action_id, counted=False, standing=error.problem)

        return contract.AnsweredManyReply(answers=[await one(action_id) for action_id in chosen])

    async def undo(self, caller: Caller, given: contract.ActionArguments) -> contract.UndoReply:
        return contract.UndoReply(undo=await self._change(caller, given.action, undo.request_undo))

    async def snooze(self, caller: Caller, given: contract.SnoozeArguments) -> contract.ActionReply:
        await self._change(
            caller, given.action, lambda tx, queue, id, who: snoozes.reschedule(tx, queue, id, given.until, who)
        )
        return contract.ActionReply(action=given.action)

    async def undo_all(self, caller: Caller, given: contract.UndoSpanArguments) -> contract.UndoSpanReply:
        span = UndoSpan(given.since, given.until or self._queue.clock.now(), given.by)
        who = Actor.of(caller)
        job = await self._queue.database.write(lambda tx: undo.start_undo_many(tx, self._queue, span, who))
        return contract.UndoSpanReply(job=job, since=span.since, until=span.until)

    def _changing(
        self, change: Change[object]
    ) -> Callable[[Caller, contract.ActionArguments], Awaitable[contract.ActionReply]]:
        async def run(caller: Caller, given: contract.ActionArguments) -> contract.ActionReply:
            await self._change(caller, given.action, change)
            return contract.ActionReply(action=given.action)

        return run

    async def _change(self, caller: Caller, action_id: str, change: Change[T]) -> T:
        """In one transaction with the check that the action is of the mailbox that the caller is bound to."""

        def run(tx: Tx) -> T:
            _require_own(tx, caller, action_id)
            return change(tx, self._queue, action_id, Actor.of(caller))

        return await self._queue.database.write(run)


def _require_own(tx: Tx, caller: Caller, action_id: str) -> None:
    mine = caller.endpoint_identity
    if mine is not None and mailbox_of_action(tx, action_id) != mine:
        raise NotAllowed(f"This token is for {mine} only.")


def _require_right_to_do(caller: Caller, wanted: WantedAction) -> None:
    if consequence_of(wanted) >= Consequence.DESTROYS and not caller.may(Permission.APPROVE):
        raise NotAllowed(f"To {wanted.type} without approval, a token needs the permission `{Permission.APPROVE}`.")


def _listed(tx: Tx, found: Sequence[Listed]) -> list[contract.ListedActionReply]:
    mailboxes = {account.id: account.email for account in list_accounts(tx, with_removed=True)}
    return [
        contract.ListedActionReply(
            id=each.action.id,
            summary=wording.title(each.action),
            type=each.action.type,
            status=each.action.status,
            is_undone=each.is_undone,
            wanted_by=each.action.wanted_by,
            mailbox=mailboxes.get(each.action.account_id, ""),
            key=each.action.gmail_id,
            subject=each.subject,
            sender=each.sender,
            reasons=list(each.action.reasons),
            error=each.action.error,
            created_at=each.action.created_at,
            finished_at=each.action.finished_at,
        )
        for each in found
    ]


def _act(
    signature: ToolSignature[Any, Any], description: str, run: Callable[[Caller, Any], Awaitable[Reply]]
) -> Tool[Any, Any]:
    return Tool(signature, Role.DASHBOARD, Permission.ACT, description, run, keeps_to_mailbox=True)


class ReviewTools:
    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def tools(self) -> Iterator[Tool[Any, Any]]:
        for signature, role in ((contract.LIST_REVIEW, Role.DASHBOARD), (contract.REVIEW_FOR_AGENT, Role.AGENT)):
            yield Tool(
                signature,
                role,
                Permission.READ,
                "Mail that a person has to look at, newest first, each with the reason.",
                self.list_items,
                reads_only=True,
            )
        yield Tool(
            contract.REVIEW_DONE,
            Role.DASHBOARD,
            Permission.ACT,
            "Mark mail as reviewed. Nothing is done to the mail itself.",
            self.done,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.REVIEW_ASK,
            Role.DASHBOARD,
            Permission.ACT,
            "Have rules and the model judge mail again that nothing decided, for example once the budget has room.",
            self.ask,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.REVIEW_REOPEN,
            Role.DASHBOARD,
            Permission.ACT,
            "Put mail back on the list that was marked as reviewed.",
            self.reopen,
            keeps_to_mailbox=True,
        )

    async def list_items(self, caller: Caller, given: contract.ReviewArguments) -> contract.ReviewReply:
        named = given.endpoint_identity
        mailbox = None if named is None else normal_email(named, "endpoint_identity")
        which = ReviewFilter(given.cause, mailbox, given.after, given.limit)
        found = await self._queue.database.read(lambda tx: review.list_review(tx, which))
        following = found[-1].id if len(found) == given.limit else None
        items = [contract.ReviewItemReply.model_validate(each) for each in found]
        return contract.ReviewReply(items=items, next=following)

    async def done(self, caller: Caller, given: contract.ReviewSelection) -> contract.ReviewDoneReply:
        def done(tx: Tx, items: list[ReviewItem]) -> int:
            review.mark_done(tx, items, Actor.of(caller), self._queue.clock.now())
            return len(items)

        return contract.ReviewDoneReply(done=sum(await self._change(caller, given, done)))

    async def ask(self, caller: Caller, given: contract.ReviewSelection) -> contract.ReviewAskedReply:
        def ask(tx: Tx, items: list[ReviewItem]) -> tuple[int, int]:
            left = len(review.ask_again(tx, self._queue, items, Actor.of(caller)))
            return len(items) - left, left

        changed = await self._change(caller, given, ask)
        return contract.ReviewAskedReply(asked=sum(each[0] for each in changed), left=sum(each[1] for each in changed))

    async def reopen(self, caller: Caller, given: contract.ReviewItems) -> contract.ReviewReopenedReply:
        who, now, mailbox = Actor.of(caller), self._queue.clock.now(), caller.endpoint_identity
        count = await self._queue.database.write(lambda tx: review.reopen(tx, given.items, who, now, mailbox))
        return contract.ReviewReopenedReply(reopened=count)

    async def _change(
        self, caller: Caller, given: contract.ReviewSelection, change: Callable[[Tx, list[ReviewItem]], T]
    ) -> list[T]:
        """Items by their ids in one transaction, or all of them in several."""
        mailbox, database = caller.endpoint_identity, self._queue.database
        if bool(given.items) == given.all:
            raise BadInput("items", "name items, or say `all`, and not both")
        if given.cause is not None and not given.all:
            raise BadInput("cause", "goes with `all`")
        if given.all:
            return await review.change_all(database.write, ReviewFilter(given.cause, mailbox), change)
        return [await database.write(lambda tx: change(tx, review.find_items(tx, given.items, mailbox)))]
