"""`postroom account`: log in to mailboxes, see how they are doing, and let them go."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from postroom import settings
from postroom.accounts.enrolment import Enrolment, log_in_again
from postroom.accounts.store import Account, AccountStatus, Provider, get_account, list_accounts
from postroom.app import App, open_vault
from postroom.audit import Actor
from postroom.cli import account_labels
from postroom.cli.doctor import print_finding, print_heading
from postroom.cli.output import DryRunOption, JsonOption, age, console, errors, print_json, print_table
from postroom.cli.session import me, with_app
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.domain.findings import Finding, first_failure
from postroom.gmail.client_secrets import read_client_secrets
from postroom.gmail.grants import StaticGrant, StoredGrant, normal_email
from postroom.gmail.oauth import LOGIN_TIMEOUT_S, log_in
from postroom.gmail.quota import ProfileName
from postroom.gmail.reach import require_safe_url
from postroom.gmail.transport import GOOGLE
from postroom.settings import ACCESS_TOKEN_VARIABLE, MODEL_KEY_ENTRY
from postroom.telemetry import logs

app = typer.Typer(no_args_is_help=True, help="Mail accounts: add, list, check, remove; their labels.")
app.command("labels")(account_labels.labels)
app.command("label")(account_labels.label)

EmailArgument = Annotated[str, typer.Argument(metavar="EMAIL", help="The account's address.")]
ProviderArgument = Annotated[Provider, typer.Argument(help="Where the mailbox is.")]
EmailOption = Annotated[str, typer.Option(help="The mailbox's address; the login must be for this one.")]
SecretsOption = Annotated[
    Path | None, typer.Option(help="The JSON of a Desktop app from Google's console: log in by browser.")
]
NoBrowserOption = Annotated[bool, typer.Option("--no-browser", help="Only print the address to open.")]
FullAccessOption = Annotated[
    bool, typer.Option("--full-access", help="Also ask for the right to delete mail for ever.")
]
BaseOption = Annotated[str, typer.Option(help="Another server that speaks Gmail's API, for example a stand-in.")]
TokenOption = Annotated[
    str | None,
    typer.Option(
        help="A bare token in place of a login. Shells keep a history of what is typed, so better leave this out: "
        f"it is then read from {ACCESS_TOKEN_VARIABLE}, or asked for unseen."
    ),
]
QuotaOption = Annotated[
    ProfileName | None, typer.Option(help="Which of Gmail's limits the Google project has, if you know.")
]
TimeoutOption = Annotated[float, typer.Option(min=1, help="Seconds to wait for the login.")]


@app.command()
def add(
    provider: ProviderArgument,
    email: EmailOption,
    client_secrets: SecretsOption = None,
    no_browser: NoBrowserOption = False,
    full_access: FullAccessOption = False,
    api_base: BaseOption = GOOGLE,
    access_token: TokenOption = None,
    quota: QuotaOption = None,
    timeout: TimeoutOption = LOGIN_TIMEOUT_S,
) -> None:
    """Log in to a mailbox, or renew a login. The login is verified first; nothing is stored if it is for another."""
    email, api_base = normal_email(email), require_safe_url(api_base, "api-base")
    if client_secrets is not None and access_token is not None:
        raise BadInput("access-token", "give either a client-secrets file or an access token, not both")
    has_token = access_token is not None or ACCESS_TOKEN_VARIABLE in os.environ
    if client_secrets is None and api_base == GOOGLE and not has_token:
        raise BadInput("client-secrets", "is needed to log in by browser; for a bare token, also give --access-token")

    async def obtain(clock: Clock) -> StoredGrant:
        if client_secrets is None:
            token = await asyncio.to_thread(_ask_for_token) if access_token is None else access_token
            logs.learn_secrets([token])
            return StaticGrant(email=email, api_base=api_base, access_token=token)
        client = read_client_secrets(client_secrets)
        show = _show_quietly if no_browser else _show_in_browser
        return await log_in(
            client, email, clock, show=show, api_base=api_base, full_access=full_access, timeout_s=timeout
        )

    async def run(app: App) -> None:
        await _enrolment(app).refuse_known_elsewhere(email, api_base)
        account, oddities = await app.take_in(await obtain(app.clock), Actor.of(me()), quota)
        for oddity in oddities:
            errors.print(f"warning: {logs.clean(oddity)}", markup=False, soft_wrap=True)
        console.print(f"Added {account.email}.", markup=False)

    with_app(run)


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the accounts and how they were doing when last looked at."""

    async def run(app: App) -> None:
        accounts = await app.database.read(list_accounts)
        if json:
            print_json(accounts)
            return
        now = app.clock.now()
        print_table(
            ["email", "provider", "status", "quota", "checked", "last error"],
            ([a.email, a.provider, a.status, a.quota, age(a.last_checked_at, now), a.last_error] for a in accounts),
            empty="No accounts yet; `postroom account add gmail --help` says how to add one.",
        )
        for account in accounts:
            if account.status is AccountStatus.LOGIN_ENDED:
                text = f"The login of {account.email} has ended, and its jobs wait. {log_in_again(account.email)}"
                console.print(text, markup=False, soft_wrap=True)

    with_app(run)


@app.command()
def check(
    email: Annotated[str | None, typer.Argument(metavar="[EMAIL]", help="Only this account; default: all.")] = None,
    json: JsonOption = False,
) -> None:
    """Check accounts down to DNS, clock, login, scope and quota; exit code 1 if anything failed."""

    async def run(app: App) -> list[Finding]:
        chosen = await _chosen(app, email)
        findings: list[Finding] = []
        for account in chosen:
            found = await _enrolment(app).check(account)
            findings += (replace(finding, account=account.email) for finding in found)
            if not json:
                print_heading(account.email)
                for finding in found:
                    print_finding(finding)
        if json:
            print_json(findings)
        elif not chosen:
            console.print("No accounts yet.")
        return findings

    if first_failure(with_app(run)):
        raise typer.Exit(1)


@app.command()
def remove(email: EmailArgument, dry_run: DryRunOption = False) -> None:
    """Forget an account's tokens and stop using it. Its mail stays here, and at the provider."""

    async def run(app: App) -> None:
        account = await app.database.read(lambda tx: get_account(tx, email))
        if dry_run:
            console.print(f"Would remove the login of {account.email}; its mail would stay.", markup=False)
            return
        await _enrolment(app).remove(account)
        console.print(
            f"Removed the login of {account.email}; its mail stays. To withdraw the access at Google as well, visit "
            "https://myaccount.google.com/permissions.",
            markup=False,
            soft_wrap=True,
        )

    with_app(run)


def _enrolment(app: App) -> Enrolment:
    return Enrolment(app.database, app.grants, app.clock)


async def _chosen(app: App, email: str | None) -> list[Account]:
    if email is None:
        return await app.database.read(list_accounts)
    return [await app.database.read(lambda tx: get_account(tx, email))]


def _ask_for_token() -> str:
    """From the environment, from the keyboard without showing it, or from a pipe."""
    given = os.environ.get(ACCESS_TOKEN_VARIABLE)
    if not given:
        given = str(typer.prompt("Access token", hide_input=True)) if sys.stdin.isatty() else sys.stdin.readline()
    if not given.strip():
        raise BadInput("access-token", f"is empty; give it here, or in {ACCESS_TOKEN_VARIABLE}")
    return given.strip()


@app.command("model-key")
def model_key(
    remove: Annotated[bool, typer.Option("--remove", help="Take it out of the vault again.")] = False,
) -> None:
    """Put the key of the language model into the vault. It is asked for unseen, or read from a pipe."""
    vault = open_vault(settings.load())
    if remove:
        console.print("Removed." if vault.remove(MODEL_KEY_ENTRY) else "There was none.")
        return
    given = str(typer.prompt("Key", hide_input=True)) if sys.stdin.isatty() else sys.stdin.readline()
    key = given.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput("key", "is empty, or holds what no key has")
    vault.put(MODEL_KEY_ENTRY, key.encode())
    console.print("Kept in the vault. A key in the environment or the settings file comes before it.")


def _show_quietly(url: str) -> None:
    errors.print("Open this address in a browser on this machine to log in:", markup=False)
    errors.print(url, markup=False, soft_wrap=True)
    errors.print("Waiting for the login; Ctrl-C stops.", markup=False)


def _show_in_browser(url: str) -> None:
    """In a thread: a browser in a terminal returns only when it is closed, and the answer must be served meanwhile."""
    _show_quietly(url)
    threading.Thread(target=_open_browser, args=(url,), daemon=True).start()


def _open_browser(url: str) -> None:
    if not webbrowser.open(url):
        errors.print("No browser could be opened here; open the address yourself.", markup=False)
