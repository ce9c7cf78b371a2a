"""The owner's tools for the installation itself: tokens, mailboxes, the model's kill switch and its ceiling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeVar

from postroom import kill_switch
from postroom.accounts.account import Account, AccountStatus, find_account
from postroom.audit import Actor
from postroom.contract import steering as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Tx
from postroom.domain.errors import NotAllowed, NotFound
from postroom.domain.ids import normal_email
from postroom.domain.money import from_cents, to_cents
from postroom.domain.roles import Caller, Permission, Role, SensitiveChange, require_proof
from postroom.mailboxes.credentials import StaticGrant
from postroom.mailboxes.reachability import require_safe_url
from postroom.queue import JobQueue
from postroom.switchboard import tokens
from postroom.switchboard.spending import ModelBudget
from postroom.switchboard.tokens import AccessToken, NewToken
from postroom.switchboard.toolbox import Tool
from postroom.telemetry import logs

T = TypeVar("T")


class Enrol(Protocol):
    async def __call__(self, grant: StaticGrant, who: Actor) -> tuple[Account, list[str]]:
        """Add an account once its login has proved good; also returns what is odd about it."""


class SyncLabels(Protocol):
    async def __call__(self, account: Account) -> Mapping[str, Any]:
        """List the mailbox's labels now; says what changed, as the reply of the tool has it."""


class TokenTools:
    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.CREATE_TOKEN,
            Role.DASHBOARD,
            Permission.TOKENS,
            "Make a token. It is shown once; only its hash is kept. A token makes none that may do more than it may.",
            self.create,
            keeps_to_mailbox=True,
        )
        yield Tool(
            contract.REVOKE_TOKEN,
            Role.DASHBOARD,
            Permission.TOKENS,
            "Revoke a token and those that it made. A token may revoke itself and those that it made.",
            self.revoke,
            keeps_to_mailbox=True,
        )
        yield _tool(
            contract.REVOKE_ALL_TOKENS, Permission.TOKENS, "Revoke every token. Refused for tokens.", self.revoke_all
        )

    async def create(self, caller: Caller, given: contract.NewTokenArguments) -> contract.MadeTokenReply:
        new = NewToken(given.role, given.name, given.expires_days, given.identity, given.permissions)
        now, maker = self._queue.clock.now(), caller.token_id
        tokens.checked(new, now)
        if maker is None:
            require_proof(caller, SensitiveChange.MAKE_TOKEN)
        token, text = await _write(
            self._queue, caller, lambda tx, who, now: tokens.create_token(tx, new, now, who, maker)
        )
        return contract.MadeTokenReply(token=text, stored=_token(token, now))

    async def revoke(self, caller: Caller, given: contract.TokenArguments) -> contract.RevokedTokenReply:
        token, made = await _write(
            self._queue,
            caller,
            lambda tx, who, now: tokens.revoke_with_made(tx, given.id, now, who, caller.token_id),
        )
        return contract.RevokedTokenReply(stored=_token(token, self._queue.clock.now()), made=made)

    async def revoke_all(self, caller: Caller, given: contract.AllTokensArguments) -> contract.RevokedTokens:
        if caller.token_id is not None:
            raise NotAllowed("A token can only revoke itself and the tokens that it made.")
        revoked = await _write(self._queue, caller, lambda tx, who, now: tokens.revoke_all(tx, now, who))
        return contract.RevokedTokens(tokens=revoked)


class InstallationTools:
    """The mailboxes, the model's kill switch, and the ceiling of what it may cost."""

    def __init__(
        self, queue: JobQueue, budget: ModelBudget, enrol: Enrol | None, sync_labels: SyncLabels | None
    ) -> None:
        self._queue = queue
        self._budget = budget
        self._enrol = enrol
        self._sync_labels = sync_labels

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield _tool(
            contract.ADD_ACCOUNT,
            Permission.ACCOUNTS,
            "Add a mailbox with an access token. It is tried first and refused if it is for another mailbox.",
            self.add_account,
        )
        yield _tool(
            contract.SYNC_LABELS,
            Permission.ACT,
            "List a mailbox's labels now. Rules follow labels that were renamed, and are switched off for this mailbox "
            "where one was deleted.",
            self.sync_labels,
        )
        yield _tool(
            contract.SWITCH_MODEL,
            Permission.SETTINGS,
            "Switch the model off in every process, or on again.",
            self.switch_model,
        )
        yield _tool(
            contract.SET_CEILING,
            Permission.SETTINGS,
            "Show or set the ceiling of all model spend a day: live mail, backfill and trials together.",
            self.set_ceiling,
        )

        yield _tool(
            contract.SHOW_CHECKLIST,
            Permission.SETTINGS,
            "Dismiss the checklist of the first run or its step about a model, or show it again.",
            self.show_checklist,
        )

    async def add_account(self, caller: Caller, given: contract.AccountArguments) -> contract.AccountReply:
        token = given.access_token.get_secret_value()
        logs.learn_secrets([token])
        email, api_base = normal_email(given.email, "email"), require_safe_url(given.api_base, "api_base")
        if self._enrol is None:
            raise NotAllowed("This Switchboard adds no mailboxes.")
        grant = StaticGrant(email=email, api_base=api_base, access_token=token)
        account, oddities = await self._enrol(grant, Actor.of(caller))
        return contract.AccountReply(id=account.id, email=account.email, remarks=oddities)

    async def sync_labels(self, caller: Caller, given: contract.MailboxArguments) -> contract.SyncedLabelsReply:
        email = normal_email(given.endpoint_identity, "endpoint_identity")
        account = await self._queue.database.read(lambda tx: find_account(tx, email))
        if account is None or account.status is AccountStatus.REMOVED:
            raise NotFound("endpoint_identity", f"there is no account {email}; `postroom account list` shows them")
        if self._sync_labels is None:
            raise NotAllowed("This Switchboard reaches no mailboxes.")
        return contract.SyncedLabelsReply.model_validate(await self._sync_labels(account))

    async def switch_model(self, caller: Caller, given: contract.ModelSwitchArguments) -> contract.ModelSwitchReply:
        state = await _write(
            self._queue, caller, lambda tx, who, now: kill_switch.turn_model(tx, given.enabled, who, now)
        )
        return contract.ModelSwitchReply(enabled=state.on, changed_at=state.changed_at, changed_by=state.changed_by)

    async def show_checklist(self, caller: Caller, given: contract.ChecklistArguments) -> contract.ChecklistReply:
        step, shown = given.step, given.shown
        await _write(self._queue, caller, lambda tx, who, now: kill_switch.show_step(tx, step, shown, who, now))
        return contract.ChecklistReply(step=step, shown=shown)

    async def set_ceiling(self, caller: Caller, given: contract.CeilingArguments) -> contract.CeilingReply:
        budget, cents = self._budget, given.cents
        before = await self._queue.database.read(budget.ceiling)
        if cents is not None and from_cents(cents) > before.ceiling:
            require_proof(caller, SensitiveChange.RAISE_CEILING)
        if cents is not None:
            await _write(self._queue, caller, lambda tx, who, now: budget.set_ceiling(tx, cents, who))
        today, limits = await self._queue.database.read(lambda tx: (budget.today(tx), budget.ceiling(tx)))
        return contract.CeilingReply(
            ceiling_cents=to_cents(limits.ceiling),
            backfill_share_cents=to_cents(limits.backfill_share),
            spent_microdollars=today.settled,
            reserved_microdollars=today.reserved,
            changed_at=limits.changed_at,
            changed_by=limits.changed_by,
        )


def _tool(
    signature: ToolSignature[Any, Any],
    permission: Permission,
    description: str,
    run: Callable[[Caller, Any], Awaitable[Reply]],
) -> Tool[Any, Any]:
    return Tool(signature, Role.DASHBOARD, permission, description, run)


async def _write(queue: JobQueue, caller: Caller, change: Callable[[Tx, Actor, datetime], T]) -> T:
    who, now = Actor.of(caller), queue.clock.now()
    return await queue.database.write(lambda tx: change(tx, who, now))


def _token(token: AccessToken, now: datetime) -> contract.TokenReply:
    return contract.TokenReply(
        id=token.id,
        role=token.role,
        name=token.name,
        endpoint_identity=token.endpoint_identity,
        state=token.state(now),
        created_at=token.created_at,
        expires_at=token.expires_at,
        last_used_at=token.last_used_at,
        permissions=token.permission_names,
        made_by=token.made_by,
    )
