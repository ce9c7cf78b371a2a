"""Proving that one knows the passphrase: at the login, before it is changed, before a sensitive change. Every wrong
guess counts."""

from __future__ import annotations

from dataclasses import dataclass

from postroom import audit
from postroom.dashboard.forms import Form
from postroom.dashboard.security import browser_secrets, cookies, passphrase, sessions, throttle
from postroom.dashboard.security.proof import FIELD, ProofNeeded, Sensitive, holds, token_refusal
from postroom.dashboard.security.throttle import Guesser
from postroom.dashboard.visit import Visit
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotAllowed
from postroom.switchboard.tokens import revoke_all


async def prove_passphrase(here: Visit, offered: str, field: str = "passphrase") -> str:
    """The hash that it was held against."""
    stored = await here.read(passphrase.stored_hash)
    guesser = guesser_of(here, stored)
    try:
        attempt = await here.write(lambda tx: throttle.admit(tx, guesser, here.now))
        await here.desk.slowing.hold(attempt)
    except throttle.TooManyAttempts:
        await here.desk.failures.note(guesser.address, is_refused=True)
        raise
    if stored is None or len(offered) > passphrase.LONGEST or not await here.desk.hashing.matches(offered, stored):
        await here.desk.failures.note(guesser.address)
        raise BadInput(field, "is not right")
    await here.write(lambda tx: throttle.lift(tx, guesser))
    return stored


def guesser_of(here: Visit, stored: str | None) -> Guesser:
    offered = cookies.read_device(here.request, here.desk.hosts)
    device = browser_secrets.device_of(offered, stored) if offered and stored else None
    return Guesser(address_of(here), device)


async def require_proof(here: Visit, change: Sensitive, form: Form | None = None) -> None:
    """That the passphrase was given in this session lately, or is given with `form`. A token cannot give it."""
    session = here.visitor.session
    if session is None:
        raise token_refusal(change)
    if holds(session, here.app.settings.dashboard.proof_minutes, here.now):
        return
    if form is None or not form.secret(FIELD):
        raise ProofNeeded(change, form)
    try:
        await give_proof(here, form.secret(FIELD), FIELD)
    except BadInput as error:
        raise ProofNeeded(change, form, error.problem, 422) from None
    except throttle.TooManyAttempts as error:
        raise ProofNeeded(change, form, error.message, 429) from None


async def give_proof(here: Visit, offered: str, field: str = "passphrase") -> None:
    """From now on, for a few minutes, this session may make sensitive changes."""
    session = here.visitor.session
    if session is None:
        raise NotAllowed("Only a login can do this: a token cannot prove that its owner is there.")
    proven = await prove_passphrase(here, offered, field)

    def note(tx: Tx) -> None:
        passphrase.require_unchanged(tx, proven, field)
        sessions.note_proof(tx, session.id, here.now)
        audit.record(tx, here.actor, "dashboard.proof", ("dashboard_session", session.id), here.now)

    await here.write(note)


@dataclass(frozen=True, slots=True)
class PassphraseChanged:
    logins_ended: int
    """All but the one that asked."""
    tokens_revoked: int


async def change_passphrase(
    here: Visit, current: str, chosen: str, repeated: str, *, revoke_tokens: bool = False
) -> PassphraseChanged:
    """All other logins end with the old one, and with `revoke_tokens` every token."""
    passphrase.check(chosen, repeated)
    proven = await prove_passphrase(here, current, "current")
    made = await here.desk.hashing.make(chosen)
    own = here.visitor.session

    def change(tx: Tx) -> PassphraseChanged:
        passphrase.require_unchanged(tx, proven, "current")
        ended = passphrase.set_hash(tx, made, here.actor, here.now, but=own.id if own else None)
        return PassphraseChanged(ended, revoke_all(tx, here.now, here.actor) if revoke_tokens else 0)

    return await here.write(change)


def address_of(here: Visit) -> str:
    return here.request.client.host if here.request.client else "?"
