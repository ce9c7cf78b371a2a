"""Proof that the person knows the passphrase: at the login, and again before a sensitive change. The table of
sensitive changes is shown in docs/security.md.

A proof holds for `dashboard.proof_minutes`. A token cannot prove that a person is there, so it makes none of these
changes; the command line on the host is the owner's. Every wrong guess counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from postroom import audit
from postroom.dashboard.context import RequestContext
from postroom.dashboard.forms import Form
from postroom.dashboard.security import gate, passphrase, sessions
from postroom.dashboard.security.passphrase import Guesser
from postroom.dashboard.security.sessions import LoginSession
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotAllowed
from postroom.switchboard.tokens import revoke_all

PROOF_FIELD = "proof"
"""Of the form that asks: the passphrase."""

_ASKS, _HOST = "asks for the passphrase", "not offered: only on the host"
_REFUSED = "refused"


class SensitiveChange(Enum):
    """What is changed, and what the dashboard and a token with every permission can do about it."""

    MAKE_TOKEN = ("make a token", _ASKS, "only with `tokens`, and nothing beyond itself")
    UNATTENDED_RULE = ("save or switch on a rule that sends or destroys mail without approval", _ASKS, _REFUSED)
    FULL_ACCESS = ("ask Google for full access, the right to delete mail for ever", _ASKS, _REFUSED)
    RAISE_CAP = ("create a backfill job that may spend more a day than the settings say", _ASKS, _REFUSED)
    ARCHIVER = ("let the archiver remove mail at the source (`postroom archive run`, `[archiver]`)", _HOST, _REFUSED)
    SECRETS = ("export secrets, or back them up (`postroom backup`)", _HOST, _REFUSED)
    CEILINGS = ("change ceilings and caps (`[backfill]`, `[model]` in `postroom.toml`)", _HOST, _REFUSED)
    MODEL = ("change the model's address or key (`[model]`)", _HOST, _REFUSED)
    NOTIFICATIONS = ("change where approvals are asked (`[discord]`)", _HOST, _REFUSED)
    ALWAYS_ALLOW = ("change what needs approval (`[safety]`)", _HOST, _REFUSED)

    @property
    def what(self) -> str:
        return self.value[0]


class ProofNeeded(NotAllowed):
    """A change that needs the passphrase again. `form` is the submitted form, to be sent again with it."""

    def __init__(self, change: SensitiveChange, form: Form | None, problem: str = "", status: int = 403) -> None:
        super().__init__(
            f"To {change.what}, give your passphrase again: send it to POST /api/settings/proof, then repeat this."
        )
        self.change = change
        self.status = status
        self.form = Form() if form is None else form
        self.problem = problem

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The submitted fields without the passphrase and the CSRF token."""
        mine = (PROOF_FIELD, "csrf")
        return [(name, value) for name, values in self.form.values.items() if name not in mine for value in values]


def token_refusal(change: SensitiveChange) -> NotAllowed:
    return NotAllowed(
        f"A token cannot {change.what}: this needs the passphrase. Use the dashboard, or `postroom` on the command "
        "line."
    )


def is_proof_fresh(session: LoginSession, minutes: int, now: datetime) -> bool:
    """Whether the passphrase was given recently in this session; a time in the future does not count."""
    return session.proved_at is not None and timedelta(0) <= now - session.proved_at < timedelta(minutes=minutes)


def sensitive_table() -> Iterator[str]:
    """For docs/security.md, which a test compares with this."""
    yield "| change | dashboard | token |"
    yield "|---|---|---|"
    for change in SensitiveChange:
        yield f"| {' | '.join(change.value)} |"


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


async def require_proof(here: RequestContext, change: SensitiveChange, form: Form | None = None) -> None:
    """Refuses unless the passphrase was given recently in this session, or comes with `form`."""
    session = here.visitor.session
    if session is None:
        raise token_refusal(change)
    if is_proof_fresh(session, here.app.settings.dashboard.proof_minutes, here.now):
        return
    if form is None or not form.secret(PROOF_FIELD):
        raise ProofNeeded(change, form)
    try:
        await give_proof(here, form.secret(PROOF_FIELD), PROOF_FIELD)
    except BadInput as error:
        raise ProofNeeded(change, form, error.problem, 422) from None
    except passphrase.TooManyAttempts as error:
        raise ProofNeeded(change, form, error.message, 429) from None


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
