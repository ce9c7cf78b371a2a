"""A look at the whole installation: home folder, disk, database, archive, vault, every account. Changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from postroom.accounts.enrolment import examine_account
from postroom.accounts.store import Account, list_accounts
from postroom.archive.opening import open_place
from postroom.archive.ownership import SWITCHBOARD, owner_of
from postroom.db import Database, Dialect, schema
from postroom.db.opening import unmigrated
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.domain.findings import Check, Finding, Verdict
from postroom.gmail.grants import GrantStore
from postroom.reading.limited import ReadingFailed, confinement_here
from postroom.settings import Settings
from postroom.vault import Vault

MIB = 1024 * 1024
_TOO_LITTLE = 256 * MIB
_LITTLE = 2_048 * MIB


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


async def examine_installation(
    settings: Settings, vault: Vault, clock: Clock, *, free: Callable[[Path], int] = free_bytes
) -> AsyncIterator[Finding]:
    """One finding after the other, as they are made; accounts come last, because they rest on the others."""
    yield judge_home(settings.home)
    yield judge_disk(settings.home, free(settings.home))
    database, accounts = await _look_at_database(settings)
    yield database
    yield judge_archive(settings)
    vault_finding = _look_at_vault(vault)
    yield vault_finding
    yield await asyncio.to_thread(judge_reader)
    if vault_finding.verdict is Verdict.FAILED:
        return
    for account in accounts:
        for finding in await _look_at_account(vault, account, clock):
            yield replace(finding, account=account.email)


def judge_home(home: Path) -> Finding:
    mode = stat.S_IMODE(home.stat().st_mode)
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        message, remedy = f"{home} cannot be written by this user.", "Check who owns it, or set POSTROOM_HOME."
    elif mode & 0o077:
        message = f"{home} is open to other users of this machine (mode {mode:04o}), and mail lies in it."
        remedy = f"Run `chmod 700 {home}`."
    else:
        return Finding(Check.HOME, Verdict.OK, str(home), f"{home} belongs to its owner alone.")
    return Finding(Check.HOME, Verdict.FAILED, str(home), message, remedy)


def judge_disk(home: Path, free: int) -> Finding:
    text = f"{free // MIB:,} MiB are free on the disk of {home}."
    if free < _TOO_LITTLE:
        return Finding(Check.DISK, Verdict.FAILED, str(home), text, "It is nearly full: free some space now.")
    if free < _LITTLE:
        return Finding(Check.DISK, Verdict.WARNING, str(home), text, "That will not hold much more mail.")
    return Finding(Check.DISK, Verdict.OK, str(home), text)


def judge_revision(revision: str | None) -> Finding:
    about = "database"
    if revision == schema.HEAD:
        return Finding(Check.DATABASE, Verdict.OK, about, f"The database answers and has schema version {revision}.")
    if revision is None or revision < schema.HEAD:
        what = "has no tables yet" if revision is None else f"has the older schema version {revision}"
        message = f"The database answers and {what}; the next command that uses it brings it up to date."
        return Finding(Check.DATABASE, Verdict.OK, about, message)
    message = f"The database has schema version {revision}; this Postroom knows versions up to {schema.HEAD}."
    return Finding(Check.DATABASE, Verdict.FAILED, about, message, "Upgrade Postroom, or restore an older backup.")


def judge_archive(settings: Settings) -> Finding:
    about = "archive"
    try:
        open_place(settings).close()
    except PostroomError as error:
        return Finding(Check.ARCHIVE, Verdict.FAILED, about, f"{error.message}.")
    if settings.archive.store == "database":
        return Finding(Check.ARCHIVE, Verdict.OK, about, "Mail is kept in the database; every worker writes to it.")
    folder = settings.home / "archive"
    owner = owner_of(folder)
    if owner is None:
        return Finding(Check.ARCHIVE, Verdict.OK, about, f"Mail is kept in files in {folder}; nobody has them open.")
    message = f"Mail is kept in files in {folder}; {owner} has them open."
    if owner.purpose != SWITCHBOARD:
        return Finding(Check.ARCHIVE, Verdict.OK, about, message)
    message += " It does no jobs itself, and workers beside it cannot bring old mail into its files: they skip `sync`."
    remedy = 'Run `postroom up` in its place, or set archive.store to "database".'
    return Finding(Check.ARCHIVE, Verdict.WARNING, about, message, remedy)


def judge_reader(examine: Callable[[], Mapping[str, str]] = confinement_here) -> Finding:
    """The child process that reads foreign bytes: whether it starts, and whether it is as confined as it should be."""
    about = "reader"
    try:
        missing = {name: why for name, why in examine().items() if why}
    except ReadingFailed as error:
        message = f"Foreign files cannot be read: {error.reason}."
        return Finding(Check.READER, Verdict.FAILED, about, message, "Install Postroom again, or free some memory.")
    if not missing:
        message = "The process that reads foreign files is confined: no network, no files, limited time and memory."
        return Finding(Check.READER, Verdict.OK, about, message)
    message = "The process that reads foreign files is not fully confined: "
    message += "; ".join(f"{name} ({why})" for name, why in missing.items()) + "."
    if {"landlock", "seccomp"} <= set(missing):
        remedy = "It can open files of this user; run Postroom on Linux 5.13 or later to prevent that."
        return Finding(Check.READER, Verdict.WARNING, about, message, remedy)
    return Finding(Check.READER, Verdict.OK, about, message)


async def _look_at_database(settings: Settings) -> tuple[Finding, list[Account]]:
    remedy = "Check POSTROOM_DATABASE__URL and that the server is running."
    try:
        url = make_url(settings.database_url)
        if url.get_backend_name() == Dialect.SQLITE and not Path(url.database or "").exists():
            return judge_revision(None), []
        revision, accounts = await _read_database(unmigrated(url, settings.database))
    except ArgumentError:
        message = "database.url is not a database address such as postgresql://user@host/name."
        return Finding(Check.DATABASE, Verdict.FAILED, "database", message, remedy), []
    except PostroomError as error:
        return Finding(Check.DATABASE, Verdict.FAILED, "database", f"{error.message.rstrip('.')}.", remedy), []
    return judge_revision(revision), accounts


async def _read_database(database: Database) -> tuple[str | None, list[Account]]:
    try:
        revision = await database.read(lambda tx: schema.revision(tx.connection))
        return revision, await database.read(list_accounts) if revision == schema.HEAD else []
    finally:
        await database.close()


def _look_at_vault(vault: Vault) -> Finding:
    try:
        used = vault.check()
    except PostroomError as error:
        return Finding(Check.VAULT, Verdict.FAILED, "vault", error.message)
    message = "The key opens the vault." if used else "The vault is empty; its key is made with the first login."
    return Finding(Check.VAULT, Verdict.OK, "vault", message)


async def _look_at_account(vault: Vault, account: Account, clock: Clock) -> list[Finding]:
    try:
        return await examine_account(GrantStore(vault), account, clock)
    except PostroomError as error:
        return [Finding(Check.VAULT, Verdict.FAILED, account.email, error.message)]
