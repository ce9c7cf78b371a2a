"""`postroom up`, `switchboard`, `worker` and `mcp`: the processes that run until they are stopped."""

from __future__ import annotations

import asyncio
import json
import json as json_format
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from typing import Annotated

import typer

from postroom.accounts.account import list_accounts
from postroom.app import App
from postroom.app.assistants import AssistantClient, client_config
from postroom.audit import Actor
from postroom.cli.session import log_model_problem, me, stopped_by_signals, with_app
from postroom.cli.terminal import console, errors
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.settings import Settings, TelemetrySettings
from postroom.settings import load as load_settings
from postroom.telemetry import endpoint, logs, metrics

log = logs.get(__name__)

_STOPPING = "Stopping. Running jobs finish now or resume at the next start."


HostOption = Annotated[
    str | None,
    typer.Option(
        "--host", help="The address to listen on, instead of switchboard.host (127.0.0.1).", show_default=False
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=0,
        max=65_535,
        help="The port to listen on, instead of switchboard.port (8470); 0 picks a free one.",
        show_default=False,
    ),
]
BehindProxyOption = Annotated[
    bool, typer.Option("--behind-proxy", help="A reverse proxy with TLS is in front, so other machines may reach it.")
]
DevOption = Annotated[
    bool, typer.Option("--dev", help="Also offer simulated mailboxes (`postroom sim gmail`) in Add a mailbox.")
]


def _listening_at(
    host: str | None, port: int | None, *, behind_proxy: bool, dev: bool = False
) -> Callable[[Settings], Settings]:
    """The settings with the options that a command was given. An address that other machines reach needs TLS in front
    of it: passphrases, tokens and mail would cross the network in the clear."""
    try:
        address = None if host is None else ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise BadInput("host", f"{host!r} is not an address; write for example 127.0.0.1") from None

    def adjusted(loaded: Settings) -> Settings:
        has_tls = (loaded.dashboard.url or "").startswith("https:")
        if address is not None and not (address.is_loopback or has_tls or behind_proxy):
            raise BadInput(
                "host",
                f"other machines can reach {address}, and Postroom has no TLS of its own. Put a reverse proxy with TLS "
                "in front of it (docs/deploy.md), and set dashboard.url to its https address or add --behind-proxy",
            )
        given = {"host": None if address is None else str(address), "port": port}
        chosen = {name: value for name, value in given.items() if value is not None}
        pages = loaded.dashboard.model_copy(update={"dev": True}) if dev else loaded.dashboard
        listening = loaded.switchboard.model_copy(update=chosen)
        return loaded.model_copy(update={"switchboard": listening, "dashboard": pages})

    return adjusted


def up(
    host: HostOption = None,
    port: PortOption = None,
    behind_proxy: BehindProxyOption = False,
    dev: DevOption = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON when ready, and log as a service does.")
    ] = False,
) -> None:
    """Run everything in one process: dashboard, MCP, archive and jobs. Ctrl-C stops it.

    It asks no questions. The first start prints a link for choosing a passphrase.
    Mailboxes are added while it runs: in the dashboard, under Settings, or with
    `postroom account add`. Where it listens: `switchboard` in docs/settings.md.
    """
    with_app(
        lambda app: _run(app, for_programs=json),
        is_service=json or not sys.stderr.isatty(),
        adjusted=_listening_at(host, port, behind_proxy=behind_proxy, dev=dev),
    )


async def _run(app: App, *, for_programs: bool) -> None:
    # The web server and the readers of models take a second or two to import.
    from postroom.app.serving import RunningSwitchboard
    from postroom.app.up import run_everything
    from postroom.dashboard.security.passphrase import first_link
    from postroom.dashboard.server import Dashboard

    async def ready(running: RunningSwitchboard) -> None:
        link = await first_link(app, running.url, Actor.of(me()))
        if for_programs:
            welcome = {} if link is None else {"welcome": link}
            print(json_format.dumps({"url": running.url, "mcp": f"{running.url}/mcp", **welcome}), flush=True)
            log_model_problem(app)
        else:
            await _greet(app, running.url, link)
        log.info("up.serving", address=running.url)

    metrics.configure()
    with stopped_by_signals("" if for_programs else _STOPPING) as stop:
        await run_everything(app, Dashboard, stop, ready)
    log.info("up.stopped")


def _model(app: App) -> str:
    from postroom.triage.model import model_problem

    settings = app.settings.model
    problem = model_problem(settings, app.vault)
    if problem is not None:
        return f"not called, rules decide alone: {problem}"
    return "none: rules decide alone" if settings.provider is None else settings.described


async def _greet(app: App, url: str, link: str | None) -> None:
    mailboxes = [account.email for account in await app.database.read(list_accounts)]
    say = partial(console.print, markup=False, soft_wrap=True)
    say(f"Postroom is running at {app.settings.dashboard.url or url}")
    if link is not None:
        say("\nOpen this link within the hour to choose your passphrase:")
        say(link)
    say("")
    say(f"  mailboxes  {', '.join(mailboxes) if mailboxes else 'none yet: Settings in the dashboard adds one'}")
    say(f"  model      {_model(app)}")
    say(f"  kept in    {app.settings.home}")
    say(f"  for MCP    {url}/mcp, with a token from `postroom token create`")
    say("\nCtrl-C stops it. Nothing is lost by that, nor by a power cut.")
    sys.stdout.flush()


def switchboard(
    host: HostOption = None,
    port: PortOption = None,
    behind_proxy: BehindProxyOption = False,
    dev: DevOption = False,
) -> None:
    """Serve the dashboard, and MCP at /mcp. Prints one line of JSON when ready.

    The first start prints a link for setting a passphrase. Programs need a token: `postroom token create`.
    Settings are under `switchboard` and `dashboard` in docs/settings.md.
    """

    async def run(app: App) -> None:
        # The web server takes a second to import.
        from postroom.app.auditing import sealing
        from postroom.app.live_settings import watching_settings
        from postroom.app.serving import open_switchboard
        from postroom.dashboard.security.passphrase import first_link
        from postroom.dashboard.server import Dashboard

        metrics.configure()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        async with sealing(app), watching_settings(app), open_switchboard(app, Dashboard) as running:
            link = await first_link(app, running.url, Actor.of(me()))
            welcome = {} if link is None else {"welcome": link}
            print(json.dumps({"url": running.url, "mcp": f"{running.url}/mcp", **welcome}), flush=True)
            if link is not None and errors.is_terminal:  # a log is no place for it
                errors.print(
                    f"Open this link within the hour to set your passphrase:\n{link}", markup=False, soft_wrap=True
                )
            log_model_problem(app)
            log.info("switchboard.serving", address=running.url)
            await stopped.wait()
            log.info("switchboard.stopping")

    with_app(run, is_service=True, adjusted=_listening_at(host, port, behind_proxy=behind_proxy, dev=dev))


def worker(
    once: Annotated[bool, typer.Option("--once", help="Exit when no job is ready to run.")] = False,
) -> None:
    """Run jobs. SIGTERM or Ctrl-C lets running jobs finish and releases the others."""

    async def run(app: App) -> None:
        from postroom.app.auditing import sealing
        from postroom.app.live_settings import watching_settings
        from postroom.app.series import recording
        from postroom.app.worker import open_worker  # models take a second to import

        metrics.configure()
        with ExitStack() as stack:
            _serve_metrics(stack, app.settings.telemetry)
            log_model_problem(app)
            watched = sealing(app), recording(app), watching_settings(app)
            async with watched[0], watched[1], watched[2], open_worker(app, until_idle=once) as worker:
                loop = asyncio.get_running_loop()
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, worker.stop)
                await worker.run()

    with_app(run, is_service=True)


assistants = typer.Typer()


@assistants.callback(invoke_without_command=True)
def mcp(
    context: typer.Context,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Make a new token; the one before is revoked.")
    ] = False,
) -> None:
    """Serve MCP on standard input and output, for an assistant on this computer.

    Assistants such as Claude Desktop start this command themselves;
    `postroom mcp config` prints what to put into their configuration. They
    can search and read mail, count what is there, see what waits and what
    runs, fetch older mail, and propose actions and rules, which you approve or
    reject. The first start makes a token for them, which `postroom token list`
    shows and `postroom token revoke` revokes.
    """
    if context.invoked_subcommand is not None:
        return

    # The thread that waits for input cannot be interrupted, and nothing has to be finished.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    async def run(app: App) -> None:
        from postroom.app.serving import owner_tools
        from postroom.domain.roles import Role
        from postroom.switchboard.mcp_server import serve_stdio
        from postroom.switchboard.on_demand import OnDemandSearch
        from postroom.switchboard.tokens import TokenVerifier
        from postroom.switchboard.toolbox import Toolbox
        from postroom.switchboard.tools.assembly import agent_tools

        text = await _assistant_token(app, renew=new_token)
        with app.archive.backend.search(app.clock) as search:
            tools = agent_tools(app.database, app.archive.backend, search, OnDemandSearch(app.queue, search))
            others = owner_tools(app.queue, app.archive.backend, app.current, app.web)
            toolbox = Toolbox([*tools, *(tool for tool in others if tool.role is Role.AGENT)])
            await serve_stdio(toolbox, TokenVerifier(app.database, app.clock), text)

    with_app(run)


@assistants.command("config")
def config_command(
    client: Annotated[AssistantClient, typer.Argument(help="The assistant that you use.", show_default=False)],
) -> None:
    """Print the configuration by which an assistant starts `postroom mcp`, ready to paste."""
    found = client_config(client, load_settings().home)
    errors.print(
        f"For {found.name}, in {found.file}.\n"
        f"If the file has “{found.key}” already, add “postroom” to it. Then restart {found.name}.",
        markup=False,
        soft_wrap=True,
    )
    typer.echo(found.text)


_ASSISTANT_TOKEN = "mcp.token"  # noqa: S105 - the name of its entry in the vault


async def _assistant_token(app: App, *, renew: bool) -> str:
    """The token of `postroom mcp`, which the vault keeps. A new one replaces the one before."""
    from postroom.domain.roles import Role
    from postroom.switchboard.tokens import NewToken, create_token, revoke_token, verify_token

    before = (app.vault.get(_ASSISTANT_TOKEN) or b"").decode()
    if before and not renew:
        return before
    now, who = app.clock.now(), Actor.of(me())

    def replaced(tx: Tx) -> str:
        if (old := verify_token(tx, before, now)) is not None:
            revoke_token(tx, old.id, now, who)
        return create_token(tx, NewToken(Role.AGENT, "postroom mcp"), now, who)[1]

    text = await app.database.write(replaced)
    app.vault.put(_ASSISTANT_TOKEN, text.encode())
    return text


def _serve_metrics(stack: ExitStack, settings: TelemetrySettings) -> None:
    if settings.metrics_port is None:
        return
    if settings.metrics_token is None:
        raise BadInput("telemetry.metrics_token", "is needed with telemetry.metrics_port; set 16 or more characters")
    try:
        port = stack.enter_context(endpoint.serve(settings.metrics_port, settings.metrics_token.get_secret_value()))
    except OSError as error:
        raise BadInput("telemetry.metrics_port", f"{settings.metrics_port} cannot be used: {error.strerror}") from error
    log.info("metrics.serving", address=f"127.0.0.1:{port}")
