"""What Postroom asks the owner of a mailbox for: no more than it needs, and how to ask for more."""

from __future__ import annotations

FULL = "https://mail.google.com/"
MODIFY = "https://www.googleapis.com/auth/gmail.modify"


def wanted(*, full_access: bool) -> frozenset[str]:
    """Reading, labels, drafts, sending and the bin need `gmail.modify`; only deleting for ever needs full access."""
    return frozenset({FULL if full_access else MODIFY})


def shortage(granted: frozenset[str], email: str, *, full_access: bool = False) -> str | None:
    """What is missing and how to get it, or None if these grants are enough."""
    if FULL in granted or (MODIFY in granted and not full_access):
        return None
    again = f"`postroom account add gmail --email {email} --client-secrets FILE"
    if full_access:
        return (
            f"Deleting mail for ever needs full access ({FULL}), which {email} has not granted. "
            f"Log in again with {again} --full-access`."
        )
    return (
        f"{email} has not granted gmail.modify, so mail cannot be read, labelled or sent. "
        f"Log in again with {again}` and leave every box on Google's page ticked."
    )
