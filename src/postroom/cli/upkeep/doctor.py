"""`postroom doctor`: what works, what does not, and what to do about it."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from postroom import eventloop, settings
from postroom.accounts.doctor import Examination, examine_installation
from postroom.app import open_app, open_vault
from postroom.app.auditing import examine_audit
from postroom.app.digest.sending import examine_digests
from postroom.cli.terminal import JsonOption, console, print_json
from postroom.domain.checkups import CheckVerdict, Finding, first_failure
from postroom.domain.clock import Clock, SystemClock
from postroom.telemetry import logs
from postroom.triage.model import examine_model, try_model
from postroom.vault import Vault

_STYLE = {CheckVerdict.OK: "green", CheckVerdict.WARNING: "yellow", CheckVerdict.FAILED: "bold red"}


def doctor(
    json: JsonOption = False,
    call_model: Annotated[bool, typer.Option(help="Also make one tiny model call, which costs money.")] = False,
) -> None:
    """Check home folder, disk, database, archive, vault, extras, model, audit log, digests and every account.

    Changes nothing, and spends nothing without --call-model. Ends with exit code 1 if anything failed.
    """
    loaded = settings.load()
    logs.configure(level="error", format="console", secrets=loaded.secrets())
    findings = eventloop.run(_examine(loaded, quiet=json, call_model=call_model))
    if json:
        print_json(findings)
    if first_failure(findings):
        raise typer.Exit(1)


async def _examine(loaded: settings.Settings, *, quiet: bool, call_model: bool) -> list[Finding]:
    findings: list[Finding] = []
    further: list[Examination] = [partial(_examine_model, call=call_model), examine_audit, examine_digests]
    async for finding in examine_installation(loaded, open_vault(loaded), SystemClock(), further=further):
        if not quiet:
            if findings and finding.account != findings[-1].account:
                print_heading(finding.account)
            print_finding(finding)
        findings.append(finding)
    return findings


def print_heading(account: str) -> None:
    console.print(account, style="bold", markup=False)


def print_finding(finding: Finding) -> None:
    console.print(f"{finding.verdict:<8}", style=_STYLE[finding.verdict], end="")
    console.print(f"{finding.check:<10}{logs.clean(finding.text)}", markup=False, soft_wrap=True)


async def _examine_model(loaded: settings.Settings, vault: Vault, clock: Clock, *, call: bool) -> list[Finding]:
    if not call:
        return examine_model(loaded.model, vault)
    async with open_app(loaded) as app:
        return [finding async for finding in try_model(loaded.model, vault, app.database, clock, app.budget)]
