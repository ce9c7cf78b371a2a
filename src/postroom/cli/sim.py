"""`postroom sim`: stand-ins for the services that Postroom talks to, for trying things out and for tests."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

app = typer.Typer(help="Simulators of outside services, for this machine only.", no_args_is_help=True)


class SimQuota(StrEnum):
    LEGACY = "legacy"
    MAY_2026 = "2026"
    NONE = "none"


@app.callback()
def main() -> None:
    """Stand-ins for outside services, on this machine only."""


@app.command()
def gmail(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0 picks a free port.")] = 0,
    messages: Annotated[int, typer.Option(min=0, help="How many messages the mailbox starts with.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same mailbox.")] = 0,
    quota: Annotated[SimQuota, typer.Option(help="Which of Gmail's limits to enforce.")] = SimQuota.NONE,
) -> None:
    """Serve a generated mailbox as Gmail would, and print one line of JSON when ready."""
    from postroom.sim.gmail.server import serve  # a web server: other commands start faster without it

    serve(port=port, messages=messages, seed=seed, quota=quota)


@app.command()
def model(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0 picks a free port.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers.")] = 0,
) -> None:
    """Serve made-up answers as an OpenAI-compatible model would, and print one line of JSON when ready."""
    from postroom import eventloop  # a web server: other commands start faster without it
    from postroom.sim.model.server import serve

    eventloop.run(serve(port=port, seed=seed))


@app.command()
def site(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0 picks a free port.")] = 0,
    documents: Annotated[int, typer.Option(min=0, max=100_000, help="How many documents the site publishes.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same site.")] = 0,
) -> None:
    """Serve a made-up web site with sitemaps, archives and bad habits, and print one line of JSON when ready."""
    from postroom import eventloop  # a web server: other commands start faster without it
    from postroom.sim.web.server import serve

    eventloop.run(serve(port=port, documents=documents, seed=seed))


@app.command()
def discord(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0 picks a free port.")] = 0,
) -> None:
    """Serve a channel as Discord would, and print one line of JSON when ready."""
    from postroom import eventloop  # a web server: other commands start faster without it
    from postroom.sim.discord import serve

    eventloop.run(serve(port=port))
