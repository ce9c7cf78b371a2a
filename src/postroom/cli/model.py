"""`postroom model`: the language model, as it is configured."""

from __future__ import annotations

import typer

from postroom.app import App
from postroom.cli.doctor import print_finding
from postroom.cli.output import JsonOption, print_json
from postroom.cli.session import with_app
from postroom.domain.findings import Finding, first_failure

app = typer.Typer(no_args_is_help=True, help="The language model: try it.")


@app.command()
def check(json: JsonOption = False) -> None:
    """Try the model: settings, key, price, then one tiny call that is paid for. Exit code 1 if anything failed."""

    async def run(app: App) -> list[Finding]:
        from postroom.triage.trying import try_model

        findings: list[Finding] = []
        async for finding in try_model(app.settings.model, app.vault, app.database, app.clock):
            if not json:
                print_finding(finding)
            findings.append(finding)
        return findings

    findings = with_app(run)
    if json:
        print_json(findings)
    if first_failure(findings):
        raise typer.Exit(1)
