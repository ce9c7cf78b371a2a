"""`postroom doctor`: what works, what does not, and what to do about it."""

from __future__ import annotations

import asyncio

import typer

from postroom import settings
from postroom.accounts.doctor import examine_installation
from postroom.app import open_vault
from postroom.cli.output import JsonOption, console, print_json
from postroom.domain.clock import SystemClock
from postroom.domain.findings import Finding, Verdict, first_failure
from postroom.telemetry import logs

_STYLE = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red"}


def doctor(json: JsonOption = False) -> None:
    """Check home folder, disk, database, vault and every account, down to DNS, clock, login, scope and quota.

    Changes nothing. Ends with exit code 1 if anything failed.
    """
    loaded = settings.load()
    logs.configure(level="error", format="console", secrets=loaded.secrets())
    findings = asyncio.run(_examine(loaded, quiet=json))
    if json:
        print_json(findings)
    if first_failure(findings):
        raise typer.Exit(1)


async def _examine(loaded: settings.Settings, *, quiet: bool) -> list[Finding]:
    findings = []
    async for finding in examine_installation(loaded, open_vault(loaded), SystemClock()):
        findings.append(finding)
        if not quiet:
            print_finding(finding)
    return findings


def print_finding(finding: Finding) -> None:
    console.print(f"{finding.verdict:<8}", style=_STYLE[finding.verdict], end="")
    console.print(f"{finding.check:<10}{logs.clean(finding.text)}", markup=False, soft_wrap=True)
