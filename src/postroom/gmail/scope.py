"""What Postroom asks the owner of a mailbox for: no more than it needs, and how to ask for more."""

from __future__ import annotations

from postroom.gmail.permissions import CHANGE, EVERYTHING


def wanted(*, full_access: bool) -> frozenset[str]:
    """Reading, labels, drafts, sending and the bin need `gmail.modify`; only deleting for ever needs full access."""
    return frozenset({EVERYTHING if full_access else CHANGE})


def shortage(granted: frozenset[str], email: str, *, full_access: bool = False) -> str | None:
    """What is missing and how to get it, or None if these grants are enough."""
    if EVERYTHING in granted or (CHANGE in granted and not full_access):
        return None
    again = f"`postroom account add gmail --email {email} --client-secrets FILE"
    if full_access:
        return (
            f"Deleting mail for ever needs full access ({EVERYTHING}), which {email} has not granted. "
            f"Log in again with {again} --full-access`."
        )
    return (
        f"{email} has not granted gmail.modify, so mail cannot be read, labelled or sent. "
        f"Log in again with {again}` and leave every box on Google's page ticked."
    )
