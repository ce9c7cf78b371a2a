"""Changes for which the owner gives the passphrase again, and the refusal of a caller that has not given it.

The tools that make these changes call `require_proof`, so it holds whichever way they are called. A token cannot
prove that a person is there, so it makes none of them; the command line on the host is the owner's.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from postroom.domain.errors import NotAllowed
from postroom.domain.roles import Caller

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
    """A change that needs the passphrase again."""

    def __init__(self, change: SensitiveChange) -> None:
        super().__init__(
            f"To {change.what}, give your passphrase again: send it to POST /api/settings/proof, then repeat this."
        )
        self.change = change


def require_proof(caller: Caller, change: SensitiveChange) -> None:
    """Refuses unless a person makes this change who gave the passphrase a short time ago."""
    if caller.token_id is not None:
        raise NotAllowed(
            f"A token cannot {change.what}: this needs the passphrase. Use the dashboard, or `postroom` on the command "
            "line."
        )
    if not caller.is_proved:
        raise ProofNeeded(change)


def sensitive_table() -> Iterator[str]:
    """For docs/security.md, which a test compares with this."""
    yield "| change | dashboard | token |"
    yield "|---|---|---|"
    for change in SensitiveChange:
        yield f"| {' | '.join(change.value)} |"
