"""Whose mailbox it is that answers: nothing is brought from, or removed in, another one than the account's."""

from __future__ import annotations

from postroom.accounts.store import Account
from postroom.domain.errors import NotAllowed
from postroom.gmail.resources import Profile
from postroom.mail.addresses import canonical_address


def require_mailbox(profile: Profile, account: Account) -> None:
    if canonical_address(profile.email, fold_gmail=True) != canonical_address(account.email, fold_gmail=True):
        raise NotAllowed(
            f"The login of {account.email} opens the mailbox of {profile.email} instead. Log in as {account.email} "
            f"with `postroom account add gmail`, or add the account of {profile.email}."
        )
