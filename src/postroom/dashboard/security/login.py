"""Login and logout, and setting the passphrase through a one-time link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Query
from starlette.responses import RedirectResponse, Response

from postroom import audit
from postroom.dashboard.context import Here, RequestContext, pages_router
from postroom.dashboard.security import gate, passphrase, sessions
from postroom.dashboard.security.proof import prove_passphrase, request_address
from postroom.dashboard.security.sessions import OWNER, visitor_of
from postroom.db import Tx
from postroom.domain.errors import BadInput, Retryable
from postroom.switchboard.tokens import revoke_all

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
    return await here.page("welcome.html", None, link=link, shortest=passphrase.SHORTEST)


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
        refused, shortest = form.refused(error), passphrase.SHORTEST
        return await here.page("welcome.html", None, 422, form=refused, link=link, shortest=shortest)
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
