"""Tools for mail that a person has to look at: list it, mark it as done, have it judged again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from postroom.audit import Actor
from postroom.contract import review as contract
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.domain.ids import normal_email
from postroom.domain.roles import Caller, Permission, Role
from postroom.queue import JobQueue
from postroom.switchboard.toolbox import Tool
from postroom.triage import review
from postroom.triage.review import ReviewFilter, ReviewItem

T = TypeVar("T")


class ReviewTools:
    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def tools(self) -> Iterator[Tool[Any, Any]]:
        for signature, role in ((contract.LIST, Role.DASHBOARD), (contract.LIST_FOR_AGENT, Role.AGENT)):
            yield Tool(
                signature,
                role,
                Permission.READ,
                "Mail that a person has to look at, newest first, each with the reason.",
                self.list_items,
                reads_only=True,
            )
        yield Tool(
            contract.DONE,
            Role.DASHBOARD,
            Permission.ACT,
            "Mark mail as reviewed. Nothing is done to the mail itself.",
            self.done,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.ASK,
            Role.DASHBOARD,
            Permission.ACT,
            "Have rules and the model judge mail again that nothing decided, for example once the budget has room.",
            self.ask,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.REOPEN,
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
