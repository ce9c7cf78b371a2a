"""Logins of IMAP accounts: kept in the vault, and examined one finding at a time.

The server's address is part of a login, so that a password is never sent to another one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from postroom.domain.checkups import Check, CheckVerdict, Finding
from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.ids import normal_email
from postroom.mailboxes.errors import (
    CallRefused,
    LoginNeeded,
    MailboxThrottled,
    MailboxUnreachable,
    PermissionMissing,
)
from postroom.mailboxes.imap.connection import (
    ImapConnection,
    ImapLogin,
    Patience,
    Security,
    ServerAddress,
    open_connection,
)
from postroom.mailboxes.imap.folders import list_folders, open_folder
from postroom.mailboxes.imap.places import GMAIL, FolderRole, FolderState, is_gmail_id, roles_of
from postroom.mailboxes.imap.providers import preset_at, preset_for
from postroom.mailboxes.protocol import MessageId
from postroom.telemetry import logs
from postroom.vault import Vault

_PATIENCE = Patience(connect_s=15, silence_s=30, total_s=60)


class _StoredLogin(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    email: str
    address: str
    user: str
    password: str = Field(repr=False)
    submission: str = ""


class ImapLogins:
    """The logins of all IMAP accounts of this installation."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def find(self, email: str) -> ImapLogin | None:
        sealed = self._vault.get(_entry(email))
        if sealed is None:
            return None
        try:
            stored = _StoredLogin.model_validate_json(sealed)
        except ValidationError:
            raise LoginNeeded(f"The stored login of {email} cannot be read by this version of Postroom.") from None
        logs.learn_secrets([stored.password])
        address = ServerAddress.parse(stored.address)
        return ImapLogin(stored.email, address, stored.user, stored.password, stored.submission)

    def load(self, email: str) -> ImapLogin:
        login = self.find(email)
        if login is None:
            raise LoginNeeded(f"{email} is not logged in here. Run {imap_login_command(email)}.")
        return login

    def save(self, login: ImapLogin) -> None:
        logs.learn_secrets([login.password])
        stored = _StoredLogin(
            email=login.email,
            address=str(login.address),
            user=login.user,
            password=login.password,
            submission=login.submission,
        )
        self._vault.put(_entry(login.email), stored.model_dump_json().encode())

    def remove(self, email: str) -> bool:
        return self._vault.remove(_entry(email))


def _entry(email: str) -> str:
    return f"imap:{normal_email(email)}"


def imap_login_command(email: str, scopes: frozenset[str] = frozenset()) -> str:
    """What logs in again; a login by browser has scopes."""
    if not scopes:
        return f"`postroom account add imap --email {email} --password-stdin`"
    is_google = any("google" in each for each in scopes)
    client = "google --client-secrets FILE" if is_google else "microsoft --client-id ID"
    return f"`postroom account add imap --email {email} --oauth {client}`"


async def examine_imap(login: ImapLogin) -> list[Finding]:
    """Server, certificate, login and folders, up to the first failure. Asks once and changes nothing."""
    server, email = str(login.address), login.email
    try:
        connection = await open_connection(login, _PATIENCE)
    except PostroomError as error:
        return _refused(error, login)
    try:
        found = [Finding(Check.NETWORK, CheckVerdict.OK, server, f"{login.address.host} accepts connections.")]
        if login.address.security is not Security.PLAIN:
            trusted = f"{login.address.host} has a certificate that this machine trusts."
            found.append(Finding(Check.TLS, CheckVerdict.OK, server, trusted))
        found.append(Finding(Check.AUTH, CheckVerdict.OK, email, f"The login of {email} is accepted."))
        try:
            listing = await list_folders(connection)
        except PostroomError as error:
            return [*found, Finding(Check.SERVICE, CheckVerdict.FAILED, server, _sentence(error), "Try again.")]
        if "INBOX" not in listing.folders:
            return [*found, Finding(Check.SERVICE, CheckVerdict.FAILED, server, "The server lists no inbox.")]
        number = len(listing.folders)
        text = f"The mailbox has {number} folder{'' if number == 1 else 's'}."
        return [*found, Finding(Check.SERVICE, CheckVerdict.OK, server, text), *_lacks(connection.capabilities, server)]
    finally:
        await connection.close()


def _refused(error: PostroomError, login: ImapLogin) -> list[Finding]:
    server, preset = str(login.address), preset_at(login.address.host) or preset_for(login.email)
    hint = preset.hint if preset is not None else "Check the name and the password."
    match error:
        case LoginNeeded():
            finding = Finding(Check.AUTH, CheckVerdict.FAILED, login.email, _sentence(error), hint)
        case PermissionMissing() | CallRefused():
            finding = Finding(Check.SERVICE, CheckVerdict.FAILED, server, error.message)
        case MailboxThrottled():
            finding = Finding(Check.QUOTA, CheckVerdict.FAILED, server, _sentence(error), "Try again later.")
        case MailboxUnreachable():
            finding = Finding(Check.NETWORK, CheckVerdict.FAILED, server, error.message)
        case _:
            finding = Finding(Check.NETWORK, CheckVerdict.FAILED, server, _sentence(error), "Try again.")
    return [finding]


def _sentence(error: PostroomError) -> str:
    return f"{error.message.rstrip('.')}."


def _lacks(capabilities: frozenset[str], server: str) -> list[Finding]:
    """What the server cannot do and its owner should know."""
    found = []
    if "UIDPLUS" not in capabilities:
        text = "The server cannot remove one message by itself (UIDPLUS), so mail is never removed there."
        found.append(Finding(Check.SERVICE, CheckVerdict.WARNING, server, text))
    if not {"CONDSTORE", "QRESYNC"} & capabilities:
        text = "The server does not count changes (CONDSTORE), so every look compares all messages."
        found.append(Finding(Check.SERVICE, CheckVerdict.WARNING, server, text))
    return found


def require_login(login: ImapLogin) -> ImapLogin:
    """Raises BadInput for a name or password that no login has."""
    for field, text in (("user", login.user), ("password", login.password)):
        if not text or any(letter in text for letter in "\r\n\0"):
            raise BadInput(field, "is empty, or holds a line break")
    return login


@dataclass(frozen=True, slots=True)
class GmailView:
    """What Gmail's own IMAP server shows of a mailbox."""

    labels: Mapping[str, FolderState]
    """The folders of its owner's labels, by their names in small letters."""
    roles: frozenset[FolderRole]
    held: frozenset[MessageId]
    """Those of the messages asked for that the mailbox holds."""


_HOLDING = (FolderRole.ALL, FolderRole.TRASH, FolderRole.SPAM)
"""Every message of a Gmail mailbox lies in exactly one of them."""


async def view_gmail(login: ImapLogin, ids: Collection[MessageId]) -> GmailView | None:
    """Look at a mailbox by Gmail's own IMAP server, changing nothing. None where the server is not Gmail's."""
    connection = await open_connection(login, _PATIENCE)
    try:
        if GMAIL not in connection.capabilities:
            return None
        listing = await list_folders(connection)
        roles = roles_of(list(listing.folders.values()))
        held: set[MessageId] = set()
        for wire in sorted(roles, key=lambda each: _HOLDING.index(roles[each]) if roles[each] in _HOLDING else 0):
            if roles[wire] in _HOLDING and held < set(ids):
                await open_folder(connection, wire)
                held |= {each for each in ids if each not in held and await _holds(connection, each)}
        owned = [
            FolderState("", wire, listing.folders[wire].delimiter) for wire in roles if roles[wire] is FolderRole.USER
        ]
        return GmailView(
            {each.label_name.casefold(): each for each in owned}, frozenset(roles.values()), frozenset(held)
        )
    finally:
        await connection.close()


async def _holds(connection: ImapConnection, message_id: MessageId) -> bool:
    """Whether the folder that is selected has the message with this id of Gmail's."""
    if not is_gmail_id(message_id):
        return False
    answer = await connection.command(b"UID SEARCH X-GM-MSGID", str(int(message_id, 16)).encode("ascii"))
    return any(each.values for each in answer.named("SEARCH"))
