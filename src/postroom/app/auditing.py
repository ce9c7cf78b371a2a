"""The chain of the audit log in an installation: its sealer, its verification, and what the doctor says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from sqlalchemy.engine import make_url

from postroom.app.installation import App
from postroom.audit.chain import ChainStatus, HeadsFile, KeyRing, RecordedHead, chain_status
from postroom.audit.sealing import AuditSealer
from postroom.audit.verifying import AuditVerification, Progress, note_verified, verify, verify_end
from postroom.db import Database, Dialect, opening
from postroom.db.opening import unmigrated
from postroom.domain.checkups import Check, CheckVerdict, Finding
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.settings import Settings
from postroom.vault import Vault

_LONG = timedelta(minutes=10)


def heads_file(settings: Settings) -> HeadsFile:
    return HeadsFile(settings.home / "archive")


@asynccontextmanager
async def sealing(app: App) -> AsyncIterator[None]:
    """Seal the audit log for as long as the block lasts; every service does."""
    sealer = AuditSealer(app.database, KeyRing(app.vault), heads_file(app.settings), app.clock)
    async with sealer.running():
        yield


async def verify_audit(
    app: App, further: Iterable[RecordedHead] = (), progress: Progress = lambda count: None
) -> AuditVerification:
    """Check the whole log against its seals and the recorded heads, and note for the dashboard that it was checked."""
    recorded = [*heads_file(app.settings).read(), *further]
    found = await verify(app.database, KeyRing(app.vault), recorded, progress)
    await app.database.write(lambda tx: note_verified(tx, found, app.clock.now()))
    return found


@asynccontextmanager
async def unchanged_database(settings: Settings) -> AsyncIterator[Database | None]:
    """The database as it is, to be looked at; None if there is none, or of another version, which the doctor reports
    by itself."""
    url = make_url(settings.database_url)
    if url.get_backend_name() == Dialect.SQLITE and not Path(url.database or "").exists():
        yield None
        return
    database = unmigrated(url, settings.database)
    try:
        revision = await database.read(lambda tx: opening.schema_revision(tx.connection))
        yield database if revision == opening.SCHEMA_HEAD else None
    finally:
        await database.close()


async def examine_audit(settings: Settings, vault: Vault, clock: Clock) -> list[Finding]:
    """A quick look at the end of the chain."""
    try:
        async with unchanged_database(settings) as database:
            return [] if database is None else [await _examine(database, settings, vault, clock)]
    except PostroomError as error:
        message = f"The audit log was not checked: {error.message}"
        return [Finding(Check.AUDIT, CheckVerdict.WARNING, "audit log", message)]


async def _examine(database: Database, settings: Settings, vault: Vault, clock: Clock) -> Finding:
    status = await database.read(chain_status)
    found = await verify_end(database, KeyRing(vault), heads_file(settings).last())
    return judge_audit(status, found, clock)


def judge_audit(status: ChainStatus, found: AuditVerification, clock: Clock) -> Finding:
    about = "audit log"
    if found.problems:
        return Finding(
            Check.AUDIT,
            CheckVerdict.FAILED,
            about,
            found.problems[0].message,
            "Run `postroom audit verify` for all of it.",
        )
    if found.uncheckable:
        keys = ", ".join(found.missing_keys[:3])
        message = f"The audit log is sealed with key {keys}, which the vault of this home folder does not hold."
        remedy = "Restore the folder `vault` from a backup; if the key is lost, run `postroom audit new-key`."
        return Finding(Check.AUDIT, CheckVerdict.WARNING, about, message, remedy)
    message = describe(status)
    if status.waiting_since is not None and clock.now() - status.waiting_since > _LONG:
        remedy = "`postroom up`, `switchboard` and `worker` seal them; the log of a running one says what hinders it."
        return Finding(Check.AUDIT, CheckVerdict.WARNING, about, message, remedy)
    return Finding(Check.AUDIT, CheckVerdict.OK, about, message)


def describe(status: ChainStatus) -> str:
    """How far the log is sealed and checked, in one sentence or two."""
    sealed = f"{status.sealed:,} audit entries are sealed" if status.sealed else "No audit entry is sealed yet"
    waiting = "none waits" if not status.waiting else f"{status.waiting:,} wait to be sealed"
    if status.verified_at is None:
        return f"{sealed}, {waiting}. The whole log was never verified."
    when = f"{status.verified_at:%Y-%m-%d %H:%M} UTC"
    what = "found sound" if not status.problems else f"{status.problems:,} problems found"
    return f"{sealed}, {waiting}. Last verified {when} up to entry {status.verified or 0:,}: {what}."
