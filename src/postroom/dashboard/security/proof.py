"""Changes that ask for the passphrase again, even of a person who is logged in. One table, shown in docs/security.md.

A session proves it when it begins and whenever it is asked; the proof holds for `dashboard.proof_minutes`. A token
cannot prove that a person is there, so it makes none of these changes. The command line on the host is the owner's.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import Enum

from postroom.dashboard.forms import Form
from postroom.dashboard.security.sessions import Session
from postroom.domain.errors import NotAllowed

FIELD = "proof"
"""Of the form that asks: the passphrase."""

_ASKS, _HOST = "asks for the passphrase", "not offered: only on the host"
_REFUSED = "refused"


class Sensitive(Enum):
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
    """A change that asks for the passphrase again. `form` is what was sent, to be sent once more with it."""

    def __init__(self, change: Sensitive, form: Form | None, problem: str = "", status: int = 403) -> None:
        super().__init__(
            f"To {change.what}, give your passphrase again: send it to POST /api/settings/proof, then repeat this."
        )
        self.change = change
        self.status = status
        self.form = Form() if form is None else form
        self.problem = problem

    @property
    def fields(self) -> list[tuple[str, str]]:
        """What was sent, but for the passphrase and the CSRF token."""
        mine = (FIELD, "csrf")
        return [(name, value) for name, values in self.form.values.items() if name not in mine for value in values]


def token_refusal(change: Sensitive) -> NotAllowed:
    return NotAllowed(
        f"A token cannot {change.what}: nobody can give the passphrase for it. Use the dashboard, or `postroom` on "
        "the command line."
    )


def holds(session: Session, minutes: int, now: datetime) -> bool:
    """Whether the passphrase was given in this session lately; one from the future was given by a wrong clock."""
    return session.proved_at is not None and timedelta(0) <= now - session.proved_at < timedelta(minutes=minutes)


def sensitive_table() -> Iterator[str]:
    """For docs/security.md, which a test compares with this."""
    yield "| change | dashboard | token |"
    yield "|---|---|---|"
    for change in Sensitive:
        yield f"| {' | '.join(change.value)} |"
