"""An account that was read by Gmail's API and is read by Gmail's IMAP server from now on (IM-6).

It stays one account: its messages have the same ids either way, and each label keeps the id that the API gave it,
because its folder begins with that id. So the archive, rules, actions and their undo go on as they are. The cursor
into the API's history means nothing to IMAP: the next look finds it too old, and compares what came since.

Refused wherever that would not hold: at another server, for a mailbox that does not show all of its mail and labels by
IMAP, and while mail is being sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select, update

from postroom.accounts.account import Account, NewAccount, Provider, add_account
from postroom.accounts.history import end_readers
from postroom.accounts.mailbox_state import labels_of
from postroom.accounts.places import begin_places
from postroom.db import Tx
from postroom.db.tables.accounts import accounts, sync_labels
from postroom.db.tables.triage import actions, outbound
from postroom.domain.errors import BadInput, Retryable
from postroom.mailboxes.imap.login import GmailView
from postroom.mailboxes.imap.places import FolderRole, FolderState
from postroom.mailboxes.protocol import LabelId, MessageId

_SHOWN = {FolderRole.ALL: "All Mail", FolderRole.SPAM: "Spam", FolderRole.TRASH: "Bin"}
_BEING_SENT = ("composing", "drafted", "sending")
_MOST_NAMED = 5
REMARK = (
    "It was read by Gmail's API and is read by IMAP from now on. Its mail, labels, rules and actions stay; Gmail's "
    "categories and conversations are not shown by IMAP, so rules that look at a category are switched off."
)


@dataclass(frozen=True, slots=True)
class KnownByApi:
    """What is known of an account that was read by the API."""

    account: Account
    labels: Mapping[LabelId, str]
    """Its owner's own."""
    newest: Sequence[MessageId]
    """The last few messages in the archive."""


def known_by_api(tx: Tx, account: Account, newest: Sequence[MessageId]) -> KnownByApi:
    """Of two ids with one name, the one that the last listing of labels had counts."""
    archived = select(sync_labels.c.label_id, sync_labels.c.name).where(sync_labels.c.account_id == account.id)
    found = [(name, label_id) for label_id, name in tx.execute(archived)]
    found += [(label.name, label.label_id) for label in labels_of(tx, account.id) if not label.is_system]
    by_name = {name.casefold(): (label_id, name) for name, label_id in found}
    return KnownByApi(account, dict(by_name.values()), newest)


def folders_begun(known: KnownByApi, view: GmailView | None, server: str) -> list[FolderState]:
    """The folders of the known labels, each with the label's id. Raises BadInput where the mailbox, as IMAP shows it,
    is not the one that is known."""
    email = known.account.email
    if view is None:
        raise BadInput(
            "host",
            f"{email} is read by Gmail's API, and {server} is not Gmail's own server: all its mail would come a second "
            "time, with other ids; use Gmail's server, or another home folder (POSTROOM_HOME)",
        )
    hidden = [name for role, name in _SHOWN.items() if role not in view.roles]
    if hidden:
        raise BadInput(
            "host",
            f"Gmail does not show {' and '.join(hidden)} of {email} by IMAP, and that mail would count as deleted; "
            "tick *Show in IMAP* beside it in Gmail's settings under *Labels*, and try again",
        )
    if known.newest and not view.held:
        raise BadInput(
            "email",
            f"none of the last {len(known.newest)} messages that are known of {email} is in this mailbox; it is "
            "another one",
        )
    lacking = sorted(name for name in known.labels.values() if name.casefold() not in view.labels)
    if lacking:
        more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
        raise BadInput(
            "host",
            f"Gmail does not show the labels {', '.join(lacking[:_MOST_NAMED])}{more} of {email} by IMAP; tick *Show "
            "in IMAP* beside them in Gmail's settings under *Labels*. If they were deleted or renamed there since, run "
            f"`postroom account labels {email} --sync` first",
        )
    return [replace(view.labels[name.casefold()], id=label_id) for label_id, name in known.labels.items()]


def read_by_imap(tx: Tx, known: Account, new: NewAccount, begun: Sequence[FolderState], now: datetime) -> Account:
    """Change the account, in one transaction. Raises Retryable while mail is being sent, from a draft that only the API
    knows."""
    _refuse_while_sending(tx, known)
    named = {"provider": Provider.IMAP, "api_base": new.api_base, "quota_profile": None}
    by_api = (accounts.c.id == known.id) & (accounts.c.provider == Provider.GMAIL)
    if tx.execute(update(accounts).where(by_api).values(**named)).rowcount:  # else another process was first
        begin_places(tx, known.id, begun)
        end_readers(tx, known.id, now)
    return add_account(tx, new, now)


def _refuse_while_sending(tx: Tx, account: Account) -> None:
    query = select(outbound.c.action_id).join(actions, actions.c.id == outbound.c.action_id)
    sending = query.where(actions.c.account_id == account.id, outbound.c.state.in_(_BEING_SENT)).limit(1)
    if tx.execute(sending).first() is not None:
        raise Retryable(f"Mail of {account.email} is being sent by Gmail's API. Try again when it is sent.")
