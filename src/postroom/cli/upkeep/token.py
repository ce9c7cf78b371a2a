"""`postroom token`: who may speak to the Switchboard."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from postroom.app import App
from postroom.audit import Actor
from postroom.cli.session import me, with_app
from postroom.cli.terminal import JsonOption, age, console, errors, print_json, print_table
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission, Role
from postroom.switchboard.tokens import AccessToken, NewToken, create_token, list_tokens, revoke_all, revoke_with_made

app = typer.Typer(
    no_args_is_help=True,
    help="Access tokens for dashboards, connectors and agents; a login link for a person.",
)


@app.command()
def create(
    role: Annotated[Role, typer.Option(help="What it may be used for.")],
    name: Annotated[str | None, typer.Option(help="The name in the audit log; default: the role.")] = None,
    permission: Annotated[
        list[Permission] | None,
        typer.Option(help="What it may do; repeatable; default: all of its role, except approve, tokens and undo."),
    ] = None,
    expires_days: Annotated[int | None, typer.Option(help="Expires after this many days; default: never.")] = None,
    mailbox: Annotated[
        str | None, typer.Option("--mailbox", "--identity", help="Limit it to this mailbox, given by its address.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a token and print it. It is shown only once; only its hash is stored."""

    async def run(app: App) -> None:
        new = NewToken(role, name or role.value, expires_days, mailbox, permission or None)
        token, text = await app.database.write(lambda tx: create_token(tx, new, app.clock.now(), Actor.of(me())))
        if json:
            print_json({"token": text, **_shown(token, app.clock.now())})
            return
        errors.print("Keep it safe: it is shown only once.", markup=False)
        console.print(text, markup=False, soft_wrap=True)

    with_app(run)


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the tokens, without their secrets."""

    async def run(app: App) -> None:
        tokens, now = await app.database.read(list_tokens), app.clock.now()
        if json:
            print_json([_shown(token, now) for token in tokens])
            return
        print_table(
            ["id", "role", "name", "state", "used", "expires", "mailbox", "permissions", "made by"],
            (_row(token, now) for token in tokens),
            empty="No tokens yet; `postroom token create --role connector` makes one.",
        )

    with_app(run)


@app.command()
def revoke(
    token_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="As `postroom token list` shows it.", show_default=False)
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="All tokens.")] = False,
) -> None:
    """Revoke a token at once and permanently, along with the tokens that it made."""
    if (token_id is None) is not all:
        raise BadInput("id", "give the id of one token, or --all for every token")

    async def run(app: App) -> str:
        now, who = app.clock.now(), Actor.of(me())
        if token_id is None:
            fell = await app.database.write(lambda tx: revoke_all(tx, now, who))
            return f"Revoked {_tokens(fell)}."
        token, fell = await app.database.write(lambda tx: revoke_with_made(tx, token_id, now, who))
        also = f", and {_tokens(fell)} that it made" if fell else ""
        return f"Revoked {token.name} ({token.role}){also}."

    console.print(with_app(run), markup=False)


@app.command()
def link(json: JsonOption = False) -> None:
    """Print a link that sets the dashboard's passphrase, valid once and for an hour. It ends every login."""

    async def run(app: App) -> None:
        from postroom.app.serving import running_address  # the web server takes a second to import
        from postroom.dashboard.security.passphrase import fresh_link

        settings = app.settings.switchboard
        served_at = running_address(app.settings.home) or f"http://{settings.host}:{settings.port}"
        url = await fresh_link(app, served_at.removesuffix("/mcp"), Actor.of(me()))
        if json:
            print_json({"url": url})
        else:
            console.print(url, markup=False, soft_wrap=True)

    with_app(run)


def _shown(token: AccessToken, now: datetime) -> dict[str, object]:
    plain = {name: getattr(token, name) for name in AccessToken.__slots__}
    return plain | {"permissions": token.permission_names, "state": token.state(now)}


def _row(token: AccessToken, now: datetime) -> list[object]:
    used, maker = age(token.last_used_at, now), token.made_by or "owner"
    known = [token.id, token.role, token.name, token.state(now), used, token.expires_at, token.endpoint_identity]
    return [*known, ", ".join(token.permission_names), maker]


def _tokens(count: int) -> str:
    return f"{count:,} {'token' if count == 1 else 'tokens'}"
