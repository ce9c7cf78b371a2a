"""Login and logout, setting the passphrase through a one-time link, and giving it again before a sensitive change
(`SensitiveChange`).

A tool refuses such a change with `ProofNeeded`; here the person is asked, and the call is repeated. A proof holds for
`dashboard.proof_minutes`. Every wrong guess counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import RedirectResponse, Response

from postroom import audit
from postroom.contract.tool import A, R, ToolSignature
from postroom.dashboard.context import Here, RequestContext, pages_router
from postroom.dashboard.forms import Form
from postroom.dashboard.security import gate, passphrase, sessions
from postroom.dashboard.security.passphrase import Guesser
from postroom.dashboard.security.sessions import OWNER, visitor_of
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotAllowed, Retryable
from postroom.domain.roles import ProofNeeded, SensitiveChange, require_proof
from postroom.switchboard.tokens import revoke_all

PROOF_FIELD = "proof"
"""Of the form that asks: the passphrase."""


class PassphraseNeeded(ProofNeeded):
    """`form` is the submitted form, to be sent again with the passphrase."""

    def __init__(self, change: SensitiveChange, form: Form | None, problem: str = "", status: int = 403) -> None:
        super().__init__(change)
        self.status = status
        self.form = Form() if form is None else form
        self.problem = problem

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The submitted fields without the passphrase and the CSRF token."""
        mine = (PROOF_FIELD, "csrf")
        return [(name, value) for name, values in self.form.values.items() if name not in mine for value in values]


async def prove_passphrase(here: RequestContext, offered: str, field: str = "passphrase") -> str:
    """Checks the passphrase and counts the attempt; returns the stored hash."""
    stored = await here.read(passphrase.stored_hash)
    guesser = guesser_of(here, stored)
    try:
        attempt = await here.write(lambda tx: passphrase.admit_attempt(tx, guesser, here.now))
        await here.services.login_delay.hold(attempt)
    except passphrase.TooManyAttempts:
        await here.services.failed_logins.note(guesser.address, is_refused=True)
        raise
    if stored is None or len(offered) > passphrase.LONGEST or not await here.services.hasher.matches(offered, stored):
        await here.services.failed_logins.note(guesser.address)
        raise BadInput(field, "is wrong")
    await here.write(lambda tx: passphrase.forgive_attempts(tx, guesser))
    return stored


def guesser_of(here: RequestContext, stored: str | None) -> Guesser:
    offered = gate.read_device_cookie(here.request, here.services.hosts)
    device = sessions.device_of(offered, stored) if offered and stored else None
    return Guesser(request_address(here), device)


async def call_with_proof(
    here: RequestContext, tool: ToolSignature[A, R], arguments: A | Mapping[str, Any], form: Form | None = None
) -> R:
    """Call a tool that may make a sensitive change; the passphrase may come with `form`."""
    try:
        return await here.call(tool, arguments)
    except ProofNeeded as needed:
        await _prove_with_form(here, needed.change, form)
    return await here.call(tool, arguments)


async def ensure_proof(here: RequestContext, change: SensitiveChange, form: Form | None = None) -> None:
    """Refuses unless the passphrase was given recently in this session, or comes with `form`."""
    try:
        require_proof(here.caller, change)
    except ProofNeeded:
        await _prove_with_form(here, change, form)


async def _prove_with_form(here: RequestContext, change: SensitiveChange, form: Form | None) -> None:
    if form is None or not form.secret(PROOF_FIELD):
        raise PassphraseNeeded(change, form) from None
    try:
        await give_proof(here, form.secret(PROOF_FIELD), PROOF_FIELD)
    except BadInput as error:
        raise PassphraseNeeded(change, form, error.problem, 422) from None
    except passphrase.TooManyAttempts as error:
        raise PassphraseNeeded(change, form, error.message, 429) from None


async def give_proof(here: RequestContext, offered: str, field: str = "passphrase") -> None:
    """Lets this session make sensitive changes for a few minutes."""
    session = here.visitor.session
    if session is None:
        raise NotAllowed("This needs a login: a token cannot prove that its owner is present.")
    proven = await prove_passphrase(here, offered, field)

    def note(tx: Tx) -> None:
        passphrase.require_unchanged(tx, proven, field)
        sessions.note_proof(tx, session.id, here.now)
        audit.record(tx, here.actor, "dashboard.proof", ("dashboard_session", session.id), here.now)

    await here.write(note)
    here.is_proved = True


@dataclass(frozen=True, slots=True)
class PassphraseChanged:
    logins_ended: int
    """All except the current one."""
    tokens_revoked: int


async def change_passphrase(
    here: RequestContext, current: str, chosen: str, repeated: str, *, revoke_tokens: bool = False
) -> PassphraseChanged:
    """Also ends all other logins, and with `revoke_tokens` revokes every token."""
    passphrase.check_passphrase(chosen, repeated)
    proven = await prove_passphrase(here, current, "current")
    made = await here.services.hasher.make(chosen)
    own = here.visitor.session

    def change(tx: Tx) -> PassphraseChanged:
        passphrase.require_unchanged(tx, proven, "current")
        ended = passphrase.set_hash(tx, made, here.actor, here.now, but=own.id if own else None)
        return PassphraseChanged(ended, revoke_all(tx, here.now, here.actor) if revoke_tokens else 0)

    return await here.write(change)


def request_address(here: RequestContext) -> str:
    return here.request.client.host if here.request.client else "?"


pages = pages_router()

_MESSAGES = {"out": "You are logged out."}
_WHO = audit.Actor.of(OWNER)


@pages.get("/login")
async def login_page(here: Here, next: str = "/", said: str = "") -> Response:
    if visitor_of(here.request.scope) is not None:
        return RedirectResponse(local_path(next), 303)
    is_set = await here.read(passphrase.stored_hash) is not None
    return await here.page("login.html", None, next=local_path(next), is_set=is_set, message=_MESSAGES.get(said, ""))


@pages.post("/login")
async def submit_login(here: Here) -> Response:
    form = await here.form()
    target = local_path(form["next"])
    try:
        proven = await prove_passphrase(here, form.secret("passphrase"))
        return await _opened(here, target, proven, lambda tx: passphrase.require_unchanged(tx, proven, "passphrase"))
    except BadInput as error:
        refused = form.refused(error)
        return await here.page("login.html", None, 422, form=refused, next=target, is_set=True, message="")
    except passphrase.TooManyAttempts as error:
        return await _too_many(here, target, error)


@pages.get("/welcome")
async def welcome_page(here: Here, link: Annotated[str, Query(max_length=200)] = "") -> Response:
    if not await here.read(lambda tx: passphrase.is_good_link(tx, link, here.now)):
        raise passphrase.LinkSpent()
    return await _welcome(here, link)


@pages.post("/welcome")
async def submit_passphrase(here: Here) -> Response:
    form = await here.form()
    chosen, repeated = (form.secret(name) for name in ("passphrase", "repeated"))
    link = form["link"]
    if not await here.read(lambda tx: passphrase.is_good_link(tx, link, here.now)):
        raise passphrase.LinkSpent()
    try:
        passphrase.check_passphrase(chosen, repeated)
    except BadInput as error:
        return await _welcome(here, link, 422, form=form.refused(error))
    made = await here.services.hasher.make(chosen)

    def spend(tx: Tx) -> None:
        passphrase.spend_link(tx, link, here.now)
        passphrase.set_hash(tx, made, _WHO, here.now)
        passphrase.forgive_attempts(tx, passphrase.Guesser(request_address(here)))
        if form.checked("revoke_tokens"):
            revoke_all(tx, here.now, _WHO)

    return await _opened(here, "/", made, spend)


@pages.post("/logout")
async def submit_logout(here: Here) -> Response:
    session = here.visitor.session
    if session is not None:
        await here.write(lambda tx: sessions.end_session(tx, session.id, here.now))
    response = RedirectResponse("/login?said=out", 303)
    gate.clear_session_cookie(response, here.request, here.services.hosts)
    return response


async def _welcome(here: RequestContext, link: str, status: int = 200, **values: Any) -> Response:
    is_set = await here.read(passphrase.stored_hash) is not None
    return await here.page(
        "welcome.html", None, status, link=link, is_set=is_set, shortest=passphrase.SHORTEST, **values
    )


async def _opened(here: RequestContext, target: str, stored: str, entitled: Callable[[Tx], None]) -> Response:
    """Begins a session in the transaction that runs `entitled`; `stored` is the hash of the passphrase."""
    client, address, settings = (
        here.request.headers.get("user-agent", "?"),
        request_address(here),
        here.app.settings.dashboard,
    )

    def run(tx: Tx) -> str:
        entitled(tx)
        secret = sessions.begin_session(tx, settings, client, address, here.now)
        audit.record(tx, _WHO, "dashboard.login", ("dashboard", "login"), here.now, after={"address": address})
        return secret

    secret = await here.write(run)
    response = RedirectResponse(target, 303)
    gate.set_session_cookie(response, here.request, here.services.hosts, settings, secret)
    gate.set_device_cookie(response, here.request, here.services.hosts, sessions.device_secret(stored))
    return response


async def _too_many(here: RequestContext, target: str, error: Retryable) -> Response:
    form = (await here.form()).refused(BadInput("passphrase", error.message))
    response = await here.page("login.html", None, 429, form=form, next=target, is_set=True, message="")
    if error.retry_after is not None:
        response.headers["retry-after"] = str(round(error.retry_after.total_seconds()))
    return response


def local_path(target: str) -> str:
    """A path of this dashboard, or `/`: a login link must not lead to another site."""
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_ours and "\\" not in target else "/"
