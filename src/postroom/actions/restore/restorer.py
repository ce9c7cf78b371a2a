"""The job `restore`: a few messages at a time, from the journal, until a restore is over or undone.

Every turn first settles what an interruption left behind: an append whose answer is unknown is searched for in the
mailbox's own history of changes, by its bytes. Only one process has the job; every write names its claim.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial

from postroom.accounts.account_jobs import account_of
from postroom.actions.label_changes import ActionMailboxes
from postroom.actions.restore import runs
from postroom.actions.restore.items import ReadBack, RestoreItem, Wanted, differences, wire_sha256
from postroom.actions.restore.runs import RestoreRun, RunState
from postroom.actions.restore.target import Located, TargetMailbox, ToPlace, did_not_happen
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.service import read_apart
from postroom.db import Tx
from postroom.domain.actions import ItemState
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.mailboxes.errors import CallRefused, Gone, LabelGone, LoginNeeded, PermissionMissing
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import AppendResult
from postroom.queue import JobContext, LeaseLost, Postponed
from postroom.queue.job import Json, describe
from postroom.settings import RestoreSettings
from postroom.telemetry import logs

log = logs.get(__name__)

_AT_ONCE = 20
_TOGETHER = 100
"""Messages at once where the mailbox has no conversations, and takes and returns many in a few commands."""
_BYTES_AT_ONCE = 32 << 20
_TRASHED_AT_ONCE = 100
_SWITCHED_OFF = timedelta(minutes=1)
_PAUSE = timedelta(seconds=5)
_LONGEST_REASON = 1_000
_NO_PROGRESS = (ItemState.PLANNED, ItemState.APPENDING)


class _GoesOn(Exception):
    """A person has ordered something more of this run: its job is not over."""


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A message whose bytes the archive cannot give."""

    item: RestoreItem
    reason: str


class RestoreHandler:
    def __init__(self, archive: ArchiveBackend, mailboxes: ActionMailboxes, settings: RestoreSettings) -> None:
        self._archive = archive
        self._mailboxes = mailboxes
        self._settings = settings

    async def __call__(self, context: JobContext) -> Json:
        run_id = str(context.job.payload.get("run_id"))
        work: _RestoreWork | None = None
        try:
            account = await account_of(context)
            mailbox = (await self._mailboxes.of(account)).at(PriorityLane.BACKFILL)
            work = _RestoreWork(context, self._archive, TargetMailbox(mailbox), self._settings)
            await work.go(run_id)
        except (LeaseLost, Postponed, LoginNeeded):
            raise
        except Exception as error:
            if isinstance(error, Retryable) and work is not None and work.has_moved:
                raise Postponed(error.retry_after or _PAUSE, error.message) from error
            for_good = isinstance(error, Fatal | BadInput | NotAllowed)
            if not (for_good or context.job.is_last_attempt):
                raise
            reason = error.message if isinstance(error, PostroomError) else describe(error)
            log.warning("restore.failed", run=run_id, problem=reason)
            await context.complete(partial(_failed, run_id=run_id, reason=reason, now=context.queue.clock.now()))
        return None


def _failed(tx: Tx, run_id: str, reason: str, now: datetime) -> Json:
    run = runs.get_run(tx, run_id, lock=True)
    if run.state in runs.AT_WORK:
        runs.finish(tx, run, RunState.FAILED, now, reason[:_LONGEST_REASON])
    return {"state": RunState.FAILED, "reason": reason[:_LONGEST_REASON]}


def _over(tx: Tx, run_id: str) -> Json:
    run = runs.get_run(tx, run_id, lock=True)
    if run.state in runs.AT_WORK:
        raise _GoesOn
    return {"state": run.state}


class _RestoreWork:
    """One attempt of the job."""

    def __init__(
        self, context: JobContext, archive: ArchiveBackend, target: TargetMailbox, settings: RestoreSettings
    ) -> None:
        self.has_moved = False
        """Something was achieved, so that trying again is no waste."""
        self._context = context
        self._archive = archive
        self._target = target
        self._settings = settings
        self._read = context.queue.database.read
        self._clock = context.queue.clock

    async def go(self, run_id: str) -> None:
        while True:
            run = await self._read(lambda tx: runs.get_run(tx, run_id))
            match run.state:
                case RunState.RUNNING:
                    await self._restore_some(run)
                case RunState.UNDOING:
                    await self._undo_some(run)
                case _:
                    try:
                        await self._context.complete(partial(_over, run_id=run_id))
                    except _GoesOn:
                        continue
                    return

    async def _restore_some(self, run: RestoreRun) -> None:
        if (reason := await self._read(runs.may_work)) is not None:
            raise Postponed(_SWITCHED_OFF, reason)
        if not run.is_planned:
            return await self._plan_some(run)
        for state, work in (
            (ItemState.APPENDING, self._settle_interrupted),
            (ItemState.UNTRASHING, self._take_out_of_trash),
            (ItemState.APPENDED, self._verify),
            (ItemState.PLANNED, self._place),
        ):
            if items := await self._items(run, state):
                return await work(run, items)
        await self._end(run, RunState.COMPLETED)

    async def _items(self, run: RestoreRun, state: ItemState) -> list[RestoreItem]:
        """Some of these, as many as fit into memory together."""
        most = _AT_ONCE if self._target.has_threads else _TOGETHER
        found = await self._read(lambda tx: runs.items_in(tx, run.id, [state], most))
        size, some = 0, list[RestoreItem]()
        for item in found:
            if some and size + item.size > _BYTES_AT_ONCE:
                break
            size, some = size + item.size, [*some, item]
        return some

    async def _plan_some(self, run: RestoreRun) -> None:
        found, after = await asyncio.to_thread(runs.search_page, self._archive, run.order, run.cursor)

        def add(tx: Tx) -> None:
            now = runs.get_run(tx, run.id, lock=True)
            if now.state is RunState.RUNNING and now.cursor == run.cursor and not now.is_planned:
                runs.add_items(tx, now, found, after, self._clock.now())
                planned = runs.progress_of(tx, now)
                runs.require_within(planned.total, planned.bytes, self._settings)

        await self._context.write(add)
        self.has_moved = True

    # What an interruption left behind

    async def _settle_interrupted(self, run: RestoreRun, items: Sequence[RestoreItem]) -> None:
        """A call that was cut off may still be at work in the mailbox for a moment, so this waits for that."""
        waited = self._clock.now() - max(item.updated_at for item in items)
        if (wait := timedelta(seconds=self._settings.settle_s) - waited) > timedelta():
            raise Postponed(wait, "an upload was interrupted, and the mailbox is searched for it first")
        by_place: dict[str, list[RestoreItem]] = defaultdict(list)
        for item in items:
            by_place[item.since or ""].append(item)
        for since, mine in by_place.items():
            added = await self._added_by(mine, since) if since else {}
            for item in (item for item in mine if item.position in added):
                with suppress(CallRefused, Gone, LabelGone, PermissionMissing):  # the certificate says what is missing
                    await self._target.add_labels(added[item.position], item.labels)
            await self._write_each(mine, partial(_settled, added))

    async def _added_by(self, items: Sequence[RestoreItem], since: str) -> dict[int, str]:
        """By position, the ids under which these lie in the mailbox since then."""
        fresh = await self._target.added_since(since)
        ready, unreadable = await self._with_bytes(items)
        missing = {each.item.position: each.wanted for each in ready}
        missing |= {each.item.position: Wanted(each.item.sha256, "", each.item.date, ()) for each in unreadable}
        found: dict[int, str] = {}
        size = max(1, self._target.mailbox.batch_size)
        for start in range(0, len(fresh), size):
            for message_id, message in (await self._target.read(fresh[start : start + size])).items():
                same = [position for position, wanted in missing.items() if message.has_bytes_of(wanted)]
                found |= dict.fromkeys(same, message_id)
                missing = {position: wanted for position, wanted in missing.items() if position not in found}
            if not missing:
                break
        return found

    async def _take_out_of_trash(self, run: RestoreRun, items: Sequence[RestoreItem]) -> None:
        await self._target.make_labels(name for item in items for name in item.labels)
        for item in items:
            try:
                await self._target.take_out_of_trash(item)
            except Gone:
                await self._write_each([item], _put_off)
            else:
                await self._write_each([item], lambda item: (ItemState.APPENDED, item.target_id, {}))

    # Reading back

    async def _verify(self, run: RestoreRun, items: Sequence[RestoreItem]) -> None:
        found = await self._target.read([str(item.target_id) for item in items])
        ready, unreadable = await self._with_bytes(items)
        by_position = {each.item.position: each for each in ready}
        lost = {each.item.position: each.reason for each in unreadable}

        def judged(item: RestoreItem) -> _Step:
            here = found.get(str(item.target_id))
            if item.position in lost:
                return ItemState.FAILED, item.target_id, {"detail": lost[item.position]}
            if here is None:
                return (
                    ItemState.FAILED,
                    item.target_id,
                    {"detail": "it was gone from the mailbox when it was read back"},
                )
            return _judged(item, by_position[item.position], here)

        await self._write_each(items, judged)

    # Putting back

    async def _place(self, run: RestoreRun, items: Sequence[RestoreItem]) -> None:
        ready, unreadable = await self._with_bytes(items)
        there = await self._target.find(ready)
        await self._target.make_labels(name for each in ready for name in each.item.labels)
        since = await self._target.cursor()
        lost = {each.item.position: each.reason for each in unreadable}
        by_position = {each.item.position: each for each in ready}

        def begun(item: RestoreItem) -> _Step:
            if item.position in lost:
                return ItemState.FAILED, None, {"detail": lost[item.position]}
            if (located := there.get(item.position)) is not None:
                return _found_there(by_position[item.position], located)
            wire = wire_sha256(by_position[item.position].raw)
            return ItemState.APPENDING, None, {"since": since, "wire_sha256": wire}

        await self._write_each(items, begun)
        await self._append_all(run, [each for each in ready if each.item.position not in there])

    async def _append_all(self, run: RestoreRun, ready: Sequence[ToPlace]) -> None:
        """Each conversation from its oldest message on: the mailbox says which conversation that began, and the others
        follow together."""
        left: dict[str, list[ToPlace]] = defaultdict(list)
        for each in ready:
            left[each.item.thread_id or each.item.key].append(each)
        threads = await self._read(lambda tx: runs.target_threads(tx, run.id, list(left)))
        while left:
            alone = self._target.has_threads
            now = {key: mine[:1] if alone and key not in threads else mine for key, mine in left.items()}
            left = {key: mine[len(now[key]) :] for key, mine in left.items() if len(mine) > len(now[key])}
            try:
                placed = await self._append_some(
                    [(each, threads.get(key) or _own_thread(run, each)) for key, some in now.items() for each in some]
                )
                begun = {key: placed[at] for key in left if (at := now[key][0].item.position) in placed}
                found = await self._target.threads_of(list(begun.values()))
                threads |= {key: found[message_id] for key, message_id in begun.items() if message_id in found}
            except PostroomError:
                later = [_as_appending(each.item) for mine in left.values() for each in mine]
                await self._write_each(later, _put_off)
                raise

    async def _append_some(self, placed: Sequence[tuple[ToPlace, str | None]]) -> dict[int, str]:
        """By position, the ids that these got; what became of each is written. Raises what concerns the mailbox as a
        whole. One that may have been added stays as it is, to be looked for."""
        results: Sequence[AppendResult]
        try:
            results = await self._target.append_all(placed)
        except PostroomError as error:
            if not did_not_happen(error):
                raise
            results = [error] * len(placed)
        known: list[tuple[RestoreItem, _Step]] = []
        for (each, _), result in zip(placed, results, strict=True):
            if (step := _appended(result)) is not None:
                known.append((_as_appending(each.item), step))
        steps = {item.position: step for item, step in known}
        await self._write_each([item for item, _ in known], lambda item: steps[item.position])
        for result in results:
            if isinstance(result, PostroomError) and not isinstance(result, CallRefused):
                raise result
        return {at: target_id for at, (_, target_id, _) in steps.items() if target_id is not None}

    # Taking back

    async def _undo_some(self, run: RestoreRun) -> None:
        if interrupted := await self._items(run, ItemState.APPENDING):
            return await self._settle_interrupted(run, interrupted)
        items = await self._read(lambda tx: runs.items_added(tx, run.id, _TRASHED_AT_ONCE))
        if items:
            await self._target.move_to_trash([str(item.target_id) for item in items])
            return await self._write_each(items, lambda item: (ItemState.TRASHED, item.target_id, {}))
        return await self._end(run, RunState.UNDONE)

    # The archive and the journal

    async def _end(self, run: RestoreRun, state: RunState) -> None:
        """Unless a person has ordered something else meanwhile."""

        def end(tx: Tx) -> None:
            now = runs.get_run(tx, run.id, lock=True)
            if now.state is run.state:
                runs.finish(tx, now, state, self._clock.now(), now.reason if state is RunState.UNDONE else None)

        await self._context.write(end)
        log.info("restore.ended", run=run.id, state=str(state))

    async def _with_bytes(self, items: Sequence[RestoreItem]) -> tuple[list[ToPlace], list[_Unreadable]]:
        run = await self._read(lambda tx: runs.get_run(tx, items[0].run_id))
        read = await read_apart(self._archive, lambda reader: [_bytes_of(reader, run.source, item) for item in items])
        ready = [each for each in read if isinstance(each, ToPlace)]
        return ready, [each for each in read if isinstance(each, _Unreadable)]

    async def _write_each(self, items: Sequence[RestoreItem], step: Callable[[RestoreItem], _Step]) -> None:
        """The next state of each, in one transaction under the job's claim."""
        if not items:
            return
        now, steps = self._clock.now(), [(item, *step(item)) for item in items]

        def write(tx: Tx) -> None:
            for item, state, target_id, values in steps:
                runs.settle(tx, item, state, now, target_id=target_id, **values)
            runs.touch(tx, items[0].run_id, now)

        await self._context.write(write)
        self.has_moved |= any(state not in _NO_PROGRESS for _, state, _, _ in steps)


_Step = tuple[ItemState, str | None, dict[str, object]]
"""The next state, the id in the mailbox, and what else is written."""


def _put_off(item: RestoreItem) -> _Step:
    """It is not in the mailbox, and will be put there later."""
    return ItemState.PLANNED, None, {}


def _appended(result: AppendResult) -> _Step | None:
    """None where it may have been added and is not known."""
    match result:
        case str():
            return ItemState.APPENDED, result, {}
        case CallRefused():
            return ItemState.FAILED, None, {"detail": result.message}
        case PostroomError() if not did_not_happen(result):
            return None
        case _:
            return ItemState.PLANNED, None, {}


def _settled(added: Mapping[int, str], item: RestoreItem) -> _Step:
    """Found, or to be looked for once more and then appended."""
    message_id = added.get(item.position)
    return (ItemState.PLANNED, None, {}) if message_id is None else (ItemState.APPENDED, message_id, {})


def _found_there(each: ToPlace, located: Located) -> _Step:
    values: dict[str, object] = {"target_thread": located.found.thread_id or None}
    if located.is_in_trash:
        return ItemState.UNTRASHING, located.id, values
    said = differences(each.wanted, located.found)
    return ItemState.ALREADY_THERE, located.id, {**values, "differences": said or None}


def _judged(item: RestoreItem, each: ToPlace, here: ReadBack) -> _Step:
    values: dict[str, object] = {"target_thread": here.thread_id or None}
    if not here.has_bytes_of(each.wanted):
        return ItemState.FAILED, item.target_id, {**values, "detail": "the mailbox gave back other bytes"}
    return ItemState.VERIFIED, item.target_id, {**values, "differences": differences(each.wanted, here) or None}


def _own_thread(run: RestoreRun, each: ToPlace) -> str | None:
    return each.item.thread_id if run.source == run.target else None


def _as_appending(item: RestoreItem) -> RestoreItem:
    """As the journal has it right before the call."""
    return replace(item, state=ItemState.APPENDING)


def _bytes_of(reader: MailReader, email: str, item: RestoreItem) -> ToPlace | _Unreadable:
    """Checked against the hash that was taken when they were stored."""
    try:
        message = reader.message(email, item.key)
        if message is None:
            return _Unreadable(item, "it is no longer in the archive")
        raw = reader.raw_of(message)
        if message.sha256 != item.sha256:
            return _Unreadable(item, "its bytes in the archive were replaced since the restore began")
        return ToPlace(item, raw, _sent_at(reader.headers_of(message).text("Date")))
    except (Fatal, Retryable) as error:
        return _Unreadable(item, f"{error.message} `postroom verify` says more")


def _sent_at(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
        return date if date.tzinfo is not None and date.year >= 1970 else None
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
