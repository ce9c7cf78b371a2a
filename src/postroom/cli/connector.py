"""`postroom connector`: bring mail from a source to the Switchboard, from a process that has no database."""

from __future__ import annotations

import asyncio
import json
import signal
from enum import StrEnum
from typing import Annotated

import typer

app = typer.Typer(help="Bring mail from a source to the Switchboard.", no_args_is_help=True)


class ConnectorQuota(StrEnum):
    LEGACY = "legacy"
    MAY_2026 = "2026"


@app.callback()
def main() -> None:
    """Bring mail from a source to the Switchboard."""


@app.command()
def gmail(
    account: Annotated[str, typer.Option(help="The mailbox, by its address; its login is in the vault.")],
    switchboard: Annotated[
        str | None, typer.Option(help="Address of the Switchboard's /mcp. [default: CONNECTOR_SWITCHBOARD_URL]")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="Other users can see a command's arguments; CONNECTOR_TOKEN or --keep-token is safer."),
    ] = None,
    keep_token: Annotated[
        bool, typer.Option("--keep-token", help="Store the token in the vault for next time.")
    ] = False,
    quota: Annotated[
        ConnectorQuota | None, typer.Option(help="Which of Gmail's limits applies; default: detected.")
    ] = None,
    health_port: Annotated[int, typer.Option(min=0, max=65535, help="Loopback port of /health; 0 picks one.")] = 0,
) -> None:
    """Serve one Gmail mailbox until SIGTERM or Ctrl-C; prints one line of JSON when it is running."""
    from postroom import eventloop, settings
    from postroom.connectors.process import TOKEN_ENTRY, ConnectorOptions, run_connector, token_in_vault
    from postroom.domain.errors import BadInput
    from postroom.domain.ids import normal_email
    from postroom.mailboxes.gmail.methods import ProfileName
    from postroom.telemetry import logs, metrics
    from postroom.vault import Vault

    loaded = settings.load(is_connector=True)
    vault_key = loaded.vault_key
    vault = Vault(loaded.home, None if vault_key is None else vault_key.get_secret_value())
    configured = loaded.connector.token
    given = token or (configured and configured.get_secret_value()) or token_in_vault(vault, account)
    if not given:
        raise BadInput("CONNECTOR_TOKEN", "is not set; `postroom token create --role connector` makes a token")
    logs.configure(
        level=loaded.telemetry.log_level, format=loaded.telemetry.log_format, secrets=[*loaded.secrets(), given]
    )
    metrics.configure()
    if keep_token:
        vault.put(f"{TOKEN_ENTRY}{normal_email(account, 'account')}", given.encode())
    options = ConnectorOptions(
        account=account,
        switchboard=switchboard or loaded.connector.switchboard_url,
        token=given,
        quota=None if quota is None else ProfileName(quota.value),
        health_port=health_port,
        config=loaded.connector,
    )

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await run_connector(loaded, vault, options, stop, _announce)

    eventloop.run(serve())


def _announce(address: str) -> None:
    print(json.dumps({"health": f"{address}/health"}), flush=True)
