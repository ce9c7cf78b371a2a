"""A look at the whole installation: home folder, disk, database, archive, vault, every account. Changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from postroom.accounts.account import Account, AccountStatus, ArchivedMailbox, list_accounts
from postroom.accounts.enrolment import examine_account
from postroom.accounts.history import LiveTrouble, live_trouble
from postroom.accounts.troubled import troubled_archives, troubled_number
from postroom.archive.service import open_archive
from postroom.archive.shards.ownership import owner_of
from postroom.archive.status import SWITCHBOARD
from postroom.db import Database, Dialect, Tx, opening
from postroom.db.opening import unmigrated
from postroom.domain.checkups import Check, CheckVerdict, Finding, first_failure
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.domain.extras import Extra, is_installed
from postroom.mailboxes.credentials import GrantStore
from postroom.reading.limited import ReadingFailed, confinement_here
from postroom.settings import FILE_NAME, Settings
from postroom.vault import Vault

MIB = 1024 * 1024
SOURCES_FILE = "sources.toml"
_TOO_LITTLE = 256 * MIB
_LITTLE = 2_048 * MIB


Examination = Callable[[Settings, Vault, Clock], Awaitable[Sequence[Finding]]]


@dataclass(frozen=True, slots=True)
class MailState:
    """What the database knows about the mail of a mailbox."""

    live: LiveTrouble | None = None
    troubled: int = 0


Mailboxes = list[tuple[Account | ArchivedMailbox, MailState]]


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


async def examine_installation(
    settings: Settings,
    vault: Vault,
    clock: Clock,
    *,
    free: Callable[[Path], int] = free_bytes,
    further: Sequence[Examination] = (),
) -> AsyncIterator[Finding]:
    """Yields each finding as it is made; accounts come last, because they need the other parts. `further` are
    examinations of other parts, made only if the vault can be read."""
    yield judge_home(settings.home)
    for path in open_secrets(settings):
        yield judge_secret_file(path)
    yield judge_disk(settings.home, free(settings.home))
    database, mailboxes = await _look_at_database(settings)
    yield database
    yield judge_archive(settings)
    vault_finding = _look_at_vault(vault)
    yield vault_finding
    yield judge_extras(settings, is_installed)
    yield await asyncio.to_thread(judge_reader)
    if vault_finding.verdict is CheckVerdict.FAILED:
        return
    for examine in further:
        for finding in await examine(settings, vault, clock):
            yield finding
    for mailbox, state in mailboxes:
        login = await _look_at_account(vault, mailbox, clock) if isinstance(mailbox, Account) else []
        for finding in [*login, *judge_mail(mailbox.email, state)]:
            yield replace(finding, account=mailbox.email)


def judge_extras(settings: Settings, has: Callable[[Extra], bool]) -> Finding:
    """Which optional parts are installed; it fails if one is missing that the settings need."""
    missing = [extra for extra in Extra if not has(extra)]
    wanted = {
        Extra.WEB: (settings.home / SOURCES_FILE).exists(),
        Extra.MODELS: settings.model.provider is not None,
        Extra.POSTGRES: settings.database_url.startswith("postgresql"),
        Extra.OCR: False,  # without it, pictures are listed as not supported
        Extra.MEANING: False,
    }
    here = ", ".join(extra for extra in Extra if extra not in missing) or "none"
    commands = " ".join(f"Add {extra} with {extra.command}." for extra in missing)
    verdict = CheckVerdict.FAILED if any(wanted[extra] for extra in missing) else CheckVerdict.OK
    needed = ", ".join(extra for extra in missing if wanted[extra])
    message = f"Extras installed: {here}." + (f" The settings need {needed}." if needed else "")
    return Finding(Check.EXTRAS, verdict, "extras", message, commands)


def judge_mail(email: str, state: MailState) -> list[Finding]:
    """Findings if new mail does not arrive, or if some of it could not be read; none if all is well."""
    found: list[Finding] = []
    if state.live is not None:
        remedy = "`postroom jobs list --state failed` and the log of the worker or connector tell more."
        found.append(Finding(Check.MAIL, CheckVerdict.FAILED, email, state.live.message, remedy))
    if state.troubled:
        what = "1 message gave" if state.troubled == 1 else f"{state.troubled:,} messages gave"
        message = f"{what} trouble: not fetched, not read, or not taken in. No other mail waits for it."
        remedy = "`postroom sync bad list` shows which and why; `postroom sync bad retry` tries again."
        found.append(Finding(Check.MAIL, CheckVerdict.WARNING, email, message, remedy))
    return found


def judge_home(home: Path) -> Finding:
    mode = stat.S_IMODE(home.stat().st_mode)
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        message, remedy = f"{home} cannot be written by this user.", "Check who owns it, or set POSTROOM_HOME."
    elif mode & 0o077:
        message = f"{home} is open to other users of this machine (mode {mode:04o}), and mail lies in it."
        remedy = f"Run `chmod 700 {home}`."
    else:
        return Finding(Check.HOME, CheckVerdict.OK, str(home), f"{home} belongs to its owner alone.")
    return Finding(Check.HOME, CheckVerdict.FAILED, str(home), message, remedy)


def open_secrets(settings: Settings) -> list[Path]:
    """Files of the home folder that hold secrets and that other users may read or change."""
    vault = settings.home / "vault"
    candidates = [settings.home / "vault.key", *sorted(vault.iterdir() if vault.is_dir() else ())]
    if _holds_secret(settings.home / FILE_NAME, settings):
        candidates.append(settings.home / FILE_NAME)
    return [path for path in candidates if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077]


def _holds_secret(path: Path, settings: Settings) -> bool:
    try:
        content = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return path.exists()
    return any(secret in content for secret in settings.secrets() if secret)


def judge_secret_file(path: Path) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    message = f"{path} holds secrets and is open to other users of this machine (mode {mode:04o})."
    return Finding(Check.HOME, CheckVerdict.FAILED, str(path), message, f"Run `chmod 600 {path}`.")


def judge_disk(home: Path, free: int) -> Finding:
    text = f"{free // MIB:,} MiB are free on the disk of {home}."
    if free < _TOO_LITTLE:
        return Finding(Check.DISK, CheckVerdict.FAILED, str(home), text, "It is nearly full: free some space now.")
    if free < _LITTLE:
        return Finding(Check.DISK, CheckVerdict.WARNING, str(home), text, "That will not hold much more mail.")
    return Finding(Check.DISK, CheckVerdict.OK, str(home), text)


def judge_revision(revision: str | None) -> Finding:
    about = "database"
    if revision == opening.SCHEMA_HEAD:
        return Finding(
            Check.DATABASE, CheckVerdict.OK, about, f"The database answers and has schema version {revision}."
        )
    if revision is None or revision < opening.SCHEMA_HEAD:
        what = "has no tables yet" if revision is None else f"has the older schema version {revision}"
        message = f"The database answers and {what}; the next command that uses it brings it up to date."
        return Finding(Check.DATABASE, CheckVerdict.OK, about, message)
    message = f"The database has schema version {revision}; this Postroom knows versions up to {opening.SCHEMA_HEAD}."
    return Finding(Check.DATABASE, CheckVerdict.FAILED, about, message, "Upgrade Postroom, or restore an older backup.")


def judge_archive(settings: Settings) -> Finding:
    about = "archive"
    try:
        open_archive(settings).close()
    except PostroomError as error:
        return Finding(Check.ARCHIVE, CheckVerdict.FAILED, about, f"{error.message}.")
    if settings.archive.store == "database":
        return Finding(
            Check.ARCHIVE, CheckVerdict.OK, about, "Mail is kept in the database; every worker writes to it."
        )
    folder = settings.home / "archive"
    owner = owner_of(folder)
    if owner is None:
        return Finding(
            Check.ARCHIVE, CheckVerdict.OK, about, f"Mail is kept in files in {folder}; no process has them open."
        )
    message = f"Mail is kept in files in {folder}; {owner} has them open."
    if owner.purpose != SWITCHBOARD:
        return Finding(Check.ARCHIVE, CheckVerdict.OK, about, message)
    message += " It does no jobs itself, and workers beside it cannot bring old mail into its files: they skip `sync`."
    remedy = 'Run `postroom up` in its place, or set archive.store to "database"; `postroom sync run` syncs once.'
    return Finding(Check.ARCHIVE, CheckVerdict.WARNING, about, message, remedy)


def judge_reader(examine: Callable[[], Mapping[str, str]] = confinement_here) -> Finding:
    """The child process that reads foreign bytes: whether it starts, and whether it is as confined as it should be."""
    about = "reader"
    try:
        missing = {name: why for name, why in examine().items() if why}
    except ReadingFailed as error:
        message = f"Foreign files cannot be read: {error.reason}."
        return Finding(
            Check.READER, CheckVerdict.FAILED, about, message, "Install Postroom again, or free some memory."
        )
    if not missing:
        message = "The process that reads foreign files is confined: no network, no files, limited time and memory."
        return Finding(Check.READER, CheckVerdict.OK, about, message)
    message = "The process that reads foreign files is not fully confined: "
    message += "; ".join(f"{name} ({why})" for name, why in missing.items()) + "."
    if {"landlock", "seccomp"} <= set(missing):
        remedy = "It can open files of this user; run Postroom on Linux 5.13 or later to prevent that."
        return Finding(Check.READER, CheckVerdict.WARNING, about, message, remedy)
    return Finding(Check.READER, CheckVerdict.OK, about, message)


async def _look_at_database(settings: Settings) -> tuple[Finding, Mailboxes]:
    remedy = "Check POSTROOM_DATABASE__URL and that the server is running."
    try:
        url = make_url(settings.database_url)
        if url.get_backend_name() == Dialect.SQLITE and not Path(url.database or "").exists():
            return judge_revision(None), []
        revision, mailboxes = await _read_database(unmigrated(url, settings.database))
    except ArgumentError:
        message = "database.url is not a database address such as postgresql://user@host/name."
        return Finding(Check.DATABASE, CheckVerdict.FAILED, "database", message, remedy), []
    except PostroomError as error:
        return Finding(Check.DATABASE, CheckVerdict.FAILED, "database", f"{error.message.rstrip('.')}.", remedy), []
    return judge_revision(revision), mailboxes


async def _read_database(database: Database) -> tuple[str | None, Mailboxes]:
    try:
        revision = await database.read(lambda tx: opening.schema_revision(tx.connection))
        return revision, await database.read(_read_mailboxes) if revision == opening.SCHEMA_HEAD else []
    finally:
        await database.close()


def _read_mailboxes(tx: Tx) -> Mailboxes:
    """The accounts, and the mailboxes without a login that have troubled messages."""
    accounts = [
        (account, MailState(live_trouble(tx, account.id), troubled_number(tx, account.id)))
        for account in list_accounts(tx)
    ]
    return [*accounts, *((mailbox, MailState(troubled=number)) for mailbox, number in troubled_archives(tx))]


def _look_at_vault(vault: Vault) -> Finding:
    try:
        used = vault.check()
    except PostroomError as error:
        return Finding(Check.VAULT, CheckVerdict.FAILED, "vault", error.message)
    message = "The key opens the vault." if used else "The vault is empty; its key is made with the first login."
    return Finding(Check.VAULT, CheckVerdict.OK, "vault", message)


async def _look_at_account(vault: Vault, account: Account, clock: Clock) -> list[Finding]:
    try:
        findings = await examine_account(GrantStore(vault), account, clock)
    except PostroomError as error:
        return [Finding(Check.VAULT, CheckVerdict.FAILED, account.email, error.message)]
    if account.status is AccountStatus.LOGIN_ENDED and first_failure(findings) is None:
        message = f"Jobs of {account.email} wait, because its login was refused a short time ago. It is accepted now."
        remedy = f"They go on within ten minutes, or at once after `postroom account check {account.email}`."
        findings.append(Finding(Check.AUTH, CheckVerdict.WARNING, account.email, message, remedy))
    return findings
