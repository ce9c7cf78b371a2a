"""Getting in and out: the passphrase through a one-time link, login, logout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Query
from starlette.responses import RedirectResponse, Response

from postroom import audit
from postroom.dashboard.changing.passphrase import address_of, prove_passphrase
from postroom.dashboard.pages import pages_router
from postroom.dashboard.security import browser_secrets, cookies, links, passphrase, sessions, throttle
from postroom.dashboard.security.visitor import OWNER, visitor_of
from postroom.dashboard.visit import Here, Visit
from postroom.db import Tx
from postroom.domain.errors import BadInput, Retryable
from postroom.switchboard.tokens import revoke_all

router = pages_router()

_SAID = {"out": "You are logged out."}
_WHO = audit.Actor.of(OWNER)


@router.get("/login")
async def login_form(here: Here, next: str = "/", said: str = "") -> Response:
    if visitor_of(here.request.scope) is not None:
        return RedirectResponse(local(next), 303)
    is_set = await here.read(passphrase.stored_hash) is not None
    return await here.page("login.html", None, next=local(next), is_set=is_set, said=_SAID.get(said, ""))


@router.post("/login")
async def login(here: Here) -> Response:
    form = await here.form()
    target = local(form["next"])
    try:
        proven = await prove_passphrase(here, form.secret("passphrase"))
        return await _opened(here, target, proven, lambda tx: passphrase.require_unchanged(tx, proven, "passphrase"))
    except BadInput as error:
        refused = form.refused(error)
        return await here.page("login.html", None, 422, form=refused, next=target, is_set=True, said="")
    except throttle.TooManyAttempts as error:
        return await _too_many(here, target, error)


@router.get("/welcome")
async def welcome(here: Here, link: Annotated[str, Query(max_length=200)] = "") -> Response:
    if not await here.read(lambda tx: links.is_good(tx, link, here.now)):
        raise links.LinkSpent()
    return await here.page("welcome.html", None, link=link, shortest=passphrase.SHORTEST)


@router.post("/welcome")
async def set_passphrase(here: Here) -> Response:
    form = await here.form()
    chosen, repeated = (form.secret(name) for name in ("passphrase", "repeated"))
    link = form["link"]
    if not await here.read(lambda tx: links.is_good(tx, link, here.now)):
        raise links.LinkSpent()
    try:
        passphrase.check(chosen, repeated)
    except BadInput as error:
        refused, shortest = form.refused(error), passphrase.SHORTEST
        return await here.page("welcome.html", None, 422, form=refused, link=link, shortest=shortest)
    made = await here.desk.hashing.make(chosen)

    def spend(tx: Tx) -> None:
        links.spend(tx, link, here.now)
        passphrase.set_hash(tx, made, _WHO, here.now)
        throttle.lift(tx, throttle.Guesser(address_of(here)))
        if form.checked("revoke_tokens"):
            revoke_all(tx, here.now, _WHO)

    return await _opened(here, "/", made, spend)


@router.post("/logout")
async def logout(here: Here) -> Response:
    session = here.visitor.session
    if session is not None:
        await here.write(lambda tx: sessions.end_session(tx, session.id, here.now))
    response = RedirectResponse("/login?said=out", 303)
    cookies.take_back(response, here.request, here.desk.hosts)
    return response


async def _opened(here: Visit, target: str, stored: str, entitled: Callable[[Tx], None]) -> Response:
    """A session, begun in the transaction that finds its visitor entitled to one. `stored` is the passphrase's hash."""
    client, address, settings = (
        here.request.headers.get("user-agent", "?"),
        address_of(here),
        here.app.settings.dashboard,
    )

    def run(tx: Tx) -> str:
        entitled(tx)
        secret = sessions.begin_session(tx, settings, client, address, here.now)
        audit.record(tx, _WHO, "dashboard.login", ("dashboard", "login"), here.now, after={"address": address})
        return secret

    secret = await here.write(run)
    response = RedirectResponse(target, 303)
    cookies.give(response, here.request, here.desk.hosts, settings, secret)
    cookies.give_device(response, here.request, here.desk.hosts, browser_secrets.device_secret(stored))
    return response


async def _too_many(here: Visit, target: str, error: Retryable) -> Response:
    said = (await here.form()).refused(BadInput("passphrase", error.message))
    response = await here.page("login.html", None, 429, form=said, next=target, is_set=True, said="")
    if error.retry_after is not None:
        response.headers["retry-after"] = str(round(error.retry_after.total_seconds()))
    return response


def local(target: str) -> str:
    """Only a place of this dashboard: a link that logs in must not lead away."""
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if is_ours and "\\" not in target else "/"
