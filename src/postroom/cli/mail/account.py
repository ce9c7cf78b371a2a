"""`postroom account`: log in to mailboxes, check them, remove them, and say which labels the model may use."""

from __future__ import annotations

import asyncio
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import SecretStr

from postroom import audit, settings
from postroom.accounts.account import Account, AccountStatus, Provider, get_account, list_accounts, name_owner
from postroom.accounts.enrolment import Enrolment, log_in_again
from postroom.accounts.mailbox_state import KnownLabel, describe_label, find_label, labels_of
from postroom.app import App, open_vault
from postroom.app.server_discovery import WantedServer, find_servers
from postroom.audit import Actor
from postroom.cli.session import me, read, with_app
from postroom.cli.terminal import DryRunOption, JsonOption, age, console, errors, print_json, print_table, printable
from postroom.cli.upkeep.doctor import print_finding, print_heading
from postroom.db import Tx
from postroom.domain.checkups import Finding, first_failure
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import normal_email
from postroom.mailboxes import credentials, first_login
from postroom.mailboxes.browser_login import ClientSecrets, read_client_secrets
from postroom.mailboxes.gmail.methods import GOOGLE, ProfileName
from postroom.mailboxes.imap.autoconfig import MailServers
from postroom.mailboxes.imap.connection import ImapLogin, Security
from postroom.mailboxes.imap.providers import SignIn, SubmissionServer, sign_in_preset, submission_given
from postroom.mailboxes.reachability import require_safe_url
from postroom.settings import ACCESS_TOKEN_VARIABLE, MODEL_KEY_ENTRY
from postroom.telemetry import logs

LONGEST_DESCRIPTION = 300

EmailArgument = Annotated[str, typer.Argument(metavar="EMAIL", help="The account's address.")]


def labels(
    email: EmailArgument,
    sync: Annotated[bool, typer.Option("--sync", help="Fetch them now, and let rules follow what changed.")] = False,
    json: JsonOption = False,
) -> None:
    """List the labels of a mailbox, as last fetched."""
    done = with_app(lambda app: _synced(app, email)) if sync else None
    found = read(lambda tx: labels_of(tx, get_account(tx, email).id))
    if json:
        shown = [asdict(label) for label in found]
        print_json(shown if done is None else {"labels": shown, "sync": done})
        return
    for line in _label_changes(done or {}):
        console.print(line, markup=False, soft_wrap=True)
    rows = ([each.name, "yes" if each.available_to_classifier else "no", each.description or ""] for each in found)
    print_table(
        ["label", "for the model", "what it is for"], rows, empty="No labels are known yet; a worker fetches them."
    )


async def _synced(app: App, email: str) -> dict[str, Any]:
    return await app.sync_labels(await app.database.read(lambda tx: get_account(tx, email)))


def _label_changes(done: Mapping[str, Any]) -> Iterator[str]:
    for old, new in done.get("renamed", ()):
        yield f"Renamed: {printable(old)} is {printable(new)} now."
    for name in done.get("deleted", ()):
        yield f"Deleted: {printable(name)}."
    for title, names in {
        "Rules that name a label by its new name now": done.get("changed_rules"),
        "Rules that are off for this mailbox, because they use a deleted label": done.get("disabled_rules"),
        "Guidance that mentions a renamed or deleted label, for you to look at": done.get("guidance_to_look_at"),
    }.items():
        if names:
            yield f"{title}: {printable(', '.join(names))}."


def label(
    email: EmailArgument,
    name: Annotated[str, typer.Argument(help="The label's name or id.")],
    describe: Annotated[str | None, typer.Option(help="What it is for, in words for the model; empty: none.")] = None,
    model: Annotated[bool | None, typer.Option("--model/--no-model", help="Whether the model may use it.")] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Describe a label to the model, or hide it from the model."""
    if describe is None and model is None:
        raise BadInput("describe", "say what to change: --describe TEXT, --model or --no-model")
    if describe is not None and (len(describe) > LONGEST_DESCRIPTION or not describe.isprintable()):
        raise BadInput("describe", f"is one line of at most {LONGEST_DESCRIPTION} characters")

    async def run(app: App) -> KnownLabel:
        def change(tx: Tx) -> KnownLabel:
            account_id, now = get_account(tx, email).id, app.clock.now()
            found = find_label(tx, account_id, name)
            if found is None:
                raise NotFound("name", f"{email} has no label {name[:60]!r}; `postroom account labels` lists them")
            said = found.description if describe is None else describe.strip() or None
            available = found.available_to_classifier if model is None else model
            if not dry_run:
                describe_label(tx, account_id, found.label_id, now, description=said, available=available)
                after = {"description": said, "available_to_classifier": available}
                audit.record(tx, Actor.of(me()), "label.change", ("label", found.label_id), now, after=after)
            return found

        return await (app.database.read if dry_run else app.database.write)(change)

    found = with_app(run)
    console.print(f"{'Would change' if dry_run else 'Changed'} the label {found.name}.", markup=False)


app = typer.Typer(no_args_is_help=True, help="Mail accounts: add, list, check and remove them; list their labels.")
app.command("labels")(labels)
app.command("label")(label)

ProviderArgument = Annotated[Provider, typer.Argument(help="Where the mailbox is.")]
EmailOption = Annotated[str, typer.Option(help="The mailbox's address; the login must be for this one.")]
SecretsOption = Annotated[
    Path | None, typer.Option(help="The JSON of a Desktop app from Google's console: log in by browser.")
]
NoBrowserOption = Annotated[bool, typer.Option("--no-browser", help="Print the address instead of opening a browser.")]
FullAccessOption = Annotated[
    bool, typer.Option("--full-access", help="Also ask for permission to delete mail permanently.")
]
BaseOption = Annotated[str, typer.Option(help="Another server that speaks Gmail's API, for example a stand-in.")]
TokenOption = Annotated[
    str | None,
    typer.Option(
        help="A bare token in place of a login. Shells keep a history of what is typed, so leave this out if you can: "
        f"it is then read from {ACCESS_TOKEN_VARIABLE}, or asked for without showing it."
    ),
]
QuotaOption = Annotated[
    ProfileName | None, typer.Option(help="Which of Gmail's limits the Google project has, if you know.")
]
HostOption = Annotated[
    str | None,
    typer.Option(help="The IMAP server; default: as the provider or its domain names it.", show_default=False),
]
PortOption = Annotated[int | None, typer.Option(help="Its port; default: 993, or 143 with --starttls.")]
UserOption = Annotated[str | None, typer.Option(help="The name to log in with, if it is not the address.")]
PasswordOption = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input; default: ask for it.")
]
TlsOption = Annotated[
    bool | None,
    typer.Option("--tls/--starttls", help="TLS from the start, or after a word in plain text.", show_default=False),
]
SmtpOption = Annotated[
    str | None,
    typer.Option(metavar="HOST[:PORT]", help="Where its mail is sent from, if the provider is not known."),
]
OAuthOption = Annotated[
    SignIn | None, typer.Option(help="Log in to an IMAP mailbox by browser, at Google or Microsoft.")
]
ClientIdOption = Annotated[
    str | None, typer.Option(help="The application id of your app registration at Microsoft.", show_default=False)
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
    timeout: TimeoutOption = first_login.LOGIN_TIMEOUT_S,
    host: HostOption = None,
    port: PortOption = None,
    user: UserOption = None,
    password_stdin: PasswordOption = False,
    tls: TlsOption = None,
    smtp_host: SmtpOption = None,
    oauth: OAuthOption = None,
    client_id: ClientIdOption = None,
) -> None:
    """Log in to a mailbox, or renew a login. Nothing is stored if the login is for another mailbox.

    Gmail: --client-secrets. IMAP: a password; the server is found by the address, unless --host names it.
    """
    email = normal_email(email)
    if provider is Provider.IMAP:
        if access_token is not None or quota is not None:
            raise BadInput("provider", "tokens and quota go with gmail; imap takes a password or --oauth")
        security = None if tls is None else Security.TLS if tls else Security.STARTTLS
        wanted = WantedServer(host, port, security, None if oauth is None else sign_in_preset(oauth))
        if oauth is None:
            obtain_login = _by_password(email, user, password_stdin, client_secrets or client_id)
        else:
            client = _imap_client(oauth, client_secrets, client_id, user, password_stdin)
            obtain_login = partial(_imap_visit, email, client, no_browser, timeout)
        _add_imap(email, wanted, obtain_login, None if smtp_host is None else submission_given(smtp_host))
        return
    if (host, port, user, tls, smtp_host, oauth, client_id) != (None,) * 7 or password_stdin:
        raise BadInput("provider", "a host, port, name and password go with imap; gmail takes --client-secrets")
    api_base = require_safe_url(api_base, "api-base")
    if client_secrets is not None and access_token is not None:
        raise BadInput("access-token", "give either a client-secrets file or an access token, not both")
    token = settings.load().access_token if access_token is None else SecretStr(access_token)
    if client_secrets is None and api_base == GOOGLE and token is None:
        raise BadInput("client-secrets", "is needed to log in by browser; for a bare token, also give --access-token")

    async def obtain(clock: Clock) -> credentials.StoredGrant:
        if client_secrets is None:
            given = token.get_secret_value().strip() if token else await asyncio.to_thread(_ask_for_token)
            logs.learn_secrets([given])
            return credentials.StaticGrant(email=email, api_base=api_base, access_token=given)
        client = read_client_secrets(client_secrets)
        show = _show_quietly if no_browser else _show_in_browser
        return await first_login.log_in(
            client, email, clock, show=show, api_base=api_base, full_access=full_access, timeout_s=timeout
        )

    async def run(app: App) -> None:
        await _enrolment(app).refuse_known_elsewhere(email, api_base)
        await _take_in(app, await obtain(app.clock), quota)

    with_app(run)


_ObtainLogin = Callable[[MailServers, Clock], Awaitable[ImapLogin | credentials.OAuthGrant]]


def _add_imap(email: str, wanted: WantedServer, obtain: _ObtainLogin, sending: SubmissionServer | None) -> None:
    async def run(app: App) -> None:
        servers = await _found(app, email, wanted)
        servers = servers if sending is None else replace(servers, submission=sending)
        await _enrolment(app).refuse_known_elsewhere(email, str(servers.address), Provider.IMAP)
        await _take_in(app, await obtain(servers, app.clock))

    with_app(run)


def _by_password(email: str, user: str | None, from_stdin: bool, client: object) -> _ObtainLogin:
    if client is not None:
        raise BadInput("oauth", "is needed with a client: --oauth google or --oauth microsoft")
    return partial(_imap_login, email, user, from_stdin)


def _imap_client(
    sign_in: SignIn, secrets: Path | None, client_id: str | None, user: str | None, password_stdin: bool
) -> ClientSecrets:
    if password_stdin or user is not None:
        raise BadInput("oauth", "is a login by browser, which takes neither a password nor a name")
    if secrets is not None:
        return replace(read_client_secrets(secrets), sign_in=sign_in)
    if sign_in is SignIn.GOOGLE:
        raise BadInput("client-secrets", "is needed to log in at Google by browser")
    if not client_id or not client_id.isascii() or not client_id.isprintable() or " " in client_id:
        raise BadInput("client-id", "is needed: the application (client) id of your app registration at Microsoft")
    return first_login.microsoft_client(client_id)


async def _imap_visit(
    email: str, client: ClientSecrets, no_browser: bool, timeout: float, servers: MailServers, clock: Clock
) -> credentials.OAuthGrant:
    show = _show_quietly if no_browser else _show_in_browser
    return await first_login.log_in_to_imap(client, email, servers, clock, show=show, timeout_s=timeout)


async def _take_in(app: App, grant: credentials.StoredGrant | ImapLogin, quota: ProfileName | None = None) -> None:
    account, oddities = await app.take_in(grant, Actor.of(me()), quota)
    for oddity in oddities:
        errors.print(f"warning: {logs.clean(oddity)}", markup=False, soft_wrap=True)
    console.print(f"Added {account.email}.", markup=False)


async def _found(app: App, email: str, wanted: WantedServer) -> MailServers:
    servers, said = await find_servers(app, email, wanted)
    if said:
        errors.print(printable(f"Found {servers.address} {said}."), markup=False, soft_wrap=True)
    return servers


async def _imap_login(email: str, user: str | None, from_stdin: bool, servers: MailServers, clock: Clock) -> ImapLogin:
    if from_stdin or not sys.stdin.isatty():
        given = (await asyncio.to_thread(sys.stdin.readline)).rstrip("\r\n")
    else:
        given = str(await asyncio.to_thread(typer.prompt, "Password", hide_input=True))
    if not given:
        raise BadInput("password", "is empty; type it here, or pipe it in with --password-stdin")
    logs.learn_secrets([given])
    return ImapLogin(email, servers.address, user or servers.user, given, str(servers.submission or ""))


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the accounts and their state at the last check."""

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
                text = f"The login of {account.email} has ended, and its jobs wait. {log_in_again(account)}"
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
    """Remove an account's login and stop using it. Its mail stays here and at the provider."""

    async def run(app: App) -> None:
        account = await app.database.read(lambda tx: get_account(tx, email))
        if dry_run:
            console.print(f"Would remove the login of {account.email}; its mail would stay.", markup=False)
            return
        await _enrolment(app).remove(account)
        console.print(
            f"Removed the login of {account.email}; its mail stays.{_withdrawing(account)}",
            markup=False,
            soft_wrap=True,
        )

    with_app(run)


def _withdrawing(account: Account) -> str:
    if account.provider is not Provider.GMAIL:
        return ""
    return " To withdraw the access at Google as well, visit https://myaccount.google.com/permissions."


def _enrolment(app: App) -> Enrolment:
    return Enrolment(app.database, app.grants, app.clock)


async def _chosen(app: App, email: str | None) -> list[Account]:
    if email is None:
        return await app.database.read(list_accounts)
    return [await app.database.read(lambda tx: get_account(tx, email))]


def _ask_for_token() -> str:
    """From the keyboard without showing it, or from a pipe."""
    given = str(typer.prompt("Access token", hide_input=True)) if sys.stdin.isatty() else sys.stdin.readline()
    if not given.strip():
        raise BadInput("access-token", f"is empty; give it here, or in {ACCESS_TOKEN_VARIABLE}")
    return given.strip()


@app.command("name")
def name_(
    email: EmailArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="For example 'Ana Silva'; an empty one removes it.")],
    dry_run: DryRunOption = False,
) -> None:
    """Set the name shown in the From line of mail sent from a mailbox."""

    async def run(app: App) -> None:
        def change(tx: Tx) -> None:
            account, now = get_account(tx, email), app.clock.now()
            if dry_run:
                return
            name_owner(tx, account.id, name or None, now)
            before, after = {"display_name": account.display_name}, {"display_name": name or None}
            audit.record(tx, Actor.of(me()), "account.name", ("account", account.id), now, before=before, after=after)

        await app.database.write(change)

    with_app(run)
    verb = "would be sent" if dry_run else "is sent"
    console.print(
        printable(f"Mail from {email} {verb} as {name} <{email}>." if name else f"Mail {verb} without a name.")
    )


@app.command("model-key")
def model_key(
    remove: Annotated[bool, typer.Option("--remove", help="Remove it from the vault.")] = False,
) -> None:
    """Store the language model's key in the vault. It is asked for without showing it, or read from a pipe."""
    vault = open_vault(settings.load())
    if remove:
        console.print("Removed." if vault.remove(MODEL_KEY_ENTRY) else "There was none.")
        return
    given = str(typer.prompt("Key", hide_input=True)) if sys.stdin.isatty() else sys.stdin.readline()
    key = given.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput("key", "is empty, or holds characters that no key has")
    vault.put(MODEL_KEY_ENTRY, key.encode())
    console.print("Stored in the vault. A key in the environment or the settings file takes precedence.")


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
