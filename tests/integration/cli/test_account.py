"""`postroom account` and `postroom doctor` as a person meets them, against the stand-in; logins in real processes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.accounts.account import Account, Provider, list_accounts
from postroom.app.installation import App
from postroom.app.server_discovery import DiscoveredServers
from postroom.cli.main import run
from postroom.db import connect
from postroom.domain.clock import SystemClock
from postroom.mailboxes.credentials import GrantStore, OAuthGrant, credentials_for
from postroom.mailboxes.gmail.methods import CHANGE, EVERYTHING
from postroom.mailboxes.imap.autoconfig import MailServers
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sim.gmail.sources import ListSource
from postroom.vault import Vault
from tests.support.dovecot import PASSWORD, dovecot
from tests.support.logins import SECRET, consent, secrets_file
from tests.support.mail import OWNER, mailbox
from tests.support.web_servers import answering, page

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str


async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "postroom", *arguments]
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)


async def in_a_process(*arguments: str, **environment: str) -> Done:
    process = await start(*arguments, **environment)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


def in_this_process(*arguments: str, stdin: str = "") -> Done:
    """The whole command line, without the second that a process takes to start."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["postroom", *arguments])
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        patch.setenv("COLUMNS", "200")
        try:
            run()
        except SystemExit as ended:
            return Done(int(ended.code or 0), out.getvalue(), err.getvalue())
    return Done(0, out.getvalue(), err.getvalue())


async def postroom(*arguments: str, stdin: str = "") -> Done:
    """In a thread, so that the stand-in can answer meanwhile."""
    return await asyncio.to_thread(in_this_process, *arguments, stdin=stdin)


async def listed(home: Path) -> list[Account]:
    database = await connect(f"sqlite:///{home / 'postroom.db'}")
    accounts = await database.read(list_accounts)
    await database.close()
    return accounts


@pytest.fixture
async def sim() -> AsyncIterator[GmailSim]:
    async with running_sim(mailbox(3)) as running:
        yield running


def grants(home: Path) -> GrantStore:
    return GrantStore(Vault(home))


def with_app(sim: GmailSim, folder: Path, *more: str) -> list[str]:
    path = secrets_file(folder, sim.url)
    return ["account", "add", "gmail", "--email", OWNER, "--client-secrets", str(path), "--api-base", sim.url, *more]


def with_token(sim: GmailSim, *more: str, email: str = OWNER) -> list[str]:
    return ["account", "add", "gmail", "--email", email, "--api-base", sim.url, *more]


async def test_an_account_is_added_by_browser_from_the_printed_address(
    sim: GmailSim, home: Path, tmp_path: Path
) -> None:
    process = await start(*with_app(sim, tmp_path, "--no-browser", "--quota", "2026"))
    assert process.stderr is not None
    assert b"Open this address in a browser" in await process.stderr.readline()
    url = (await process.stderr.readline()).decode().strip()
    assert b"Waiting for the login" in await process.stderr.readline()
    assert (await consent(url)).status_code == 200
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, f"Added {OWNER}.\n".encode(), b"")
    (account,) = json.loads((await postroom("account", "list", "--json")).stdout)
    assert (account["email"], account["status"], account["quota"]) == (OWNER, "active", "2026")
    assert account["scopes"] == [CHANGE]
    grant = grants(home).load(OWNER)
    assert isinstance(grant, OAuthGrant)
    renewed = await credentials_for(grants(home), OWNER, SystemClock()).access_token(rejected=grant.access_token)
    assert renewed != grant.access_token


async def test_the_browser_is_opened_and_full_access_is_asked_for_only_when_wanted(
    sim: GmailSim, home: Path, tmp_path: Path
) -> None:
    browser = f"{sys.executable} -m tests.support.logins %s"
    done = await in_a_process(*with_app(sim, tmp_path, "--full-access"), BROWSER=browser)
    assert (done.code, done.stdout) == (0, f"Added {OWNER}.\n")
    assert (await listed(home))[0].scopes == {EVERYTHING}


async def test_a_login_that_nobody_finishes_ends_in_time_and_stores_nothing(
    sim: GmailSim, home: Path, tmp_path: Path
) -> None:
    done = await postroom(*with_app(sim, tmp_path, "--no-browser", "--timeout", "1"))
    assert done.code == 1
    assert "error: The login was not finished within 1 seconds; nothing was stored." in done.stderr
    assert await listed(home) == []


async def test_ctrl_c_ends_the_wait_at_once(sim: GmailSim, home: Path, tmp_path: Path) -> None:
    process = await start(*with_app(sim, tmp_path, "--no-browser"))
    assert process.stderr is not None
    for _ in range(3):
        await process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, rest = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, b"Traceback" in rest) == (130, False)


@pytest.mark.parametrize("way", ["option", "environment", "pipe"])
async def test_an_account_is_added_with_a_bare_token_three_ways(
    sim: GmailSim, home: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    option = ["--access-token", sim.token] if way == "option" else []
    if way == "environment":
        monkeypatch.setenv("POSTROOM_ACCESS_TOKEN", sim.token)
    done = await postroom(*with_token(sim, *option), stdin=f"{sim.token}\n" if way == "pipe" else "")
    assert (done.code, done.stdout) == (0, f"Added {OWNER}.\n"), done.stderr
    assert grants(home).load(OWNER).access_token == sim.token


@pytest.mark.req("PL-6")
async def test_no_token_is_printed_or_readable_in_the_home_folder(sim: GmailSim, home: Path, tmp_path: Path) -> None:
    browser = f"{sys.executable} -m tests.support.logins %s"
    said = [await in_a_process(*with_app(sim, tmp_path), BROWSER=browser)]
    grant = grants(home).load(OWNER)
    assert isinstance(grant, OAuthGrant)
    sim.control.revoke()
    for command in (["account", "check"], ["account", "list", "--json"], ["doctor", "--json"]):
        said.append(await postroom(*command))
    printed_text = "".join(done.stdout + done.stderr for done in said)
    on_disk = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    for secret in (grant.access_token, grant.refresh_token, SECRET):
        assert secret not in printed_text
        assert secret.encode() not in on_disk


async def test_a_login_for_another_mailbox_is_refused_and_nothing_is_stored(sim: GmailSim, home: Path) -> None:
    done = await postroom(*with_token(sim, "--access-token", sim.token, email="other@example.com"))
    assert done.code == 1
    assert f"opens the mailbox of {OWNER} instead" in done.stderr
    assert await listed(home) == []
    assert not (home / "vault").exists()


async def test_adding_again_renews_the_login_and_keeps_the_account(sim: GmailSim, home: Path) -> None:
    await postroom(*with_token(sim, "--access-token", sim.token, "--quota", "legacy"))
    (before,) = await listed(home)
    fresh = sim.control.new_token()
    await postroom(*with_token(sim, "--access-token", fresh))
    (after,) = await listed(home)
    assert (after.id, after.quota) == (before.id, "legacy")
    assert grants(home).load(OWNER).access_token == fresh


async def test_several_accounts_are_kept_apart_and_one_is_removed(sim: GmailSim, home: Path) -> None:
    async with running_sim(ListSource([], email="second@example.com")) as other:
        await postroom(*with_token(sim, "--access-token", sim.token))
        await postroom(*with_token(other, "--access-token", other.token, email=other.email))
        assert [account.email for account in await listed(home)] == [OWNER, other.email]
        preview = await postroom("account", "remove", OWNER, "--dry-run")
        assert "Would remove the login" in preview.stdout
        assert grants(home).find(OWNER) is not None
        removed = await postroom("account", "remove", OWNER.upper())
        assert "its mail stays" in removed.stdout
        assert grants(home).find(OWNER) is None
        assert [account.email for account in await listed(home)] == [other.email]
        assert grants(home).load(other.email).access_token == other.token
    gone = await postroom("account", "remove", OWNER)
    assert (gone.code, f"error: account: there is no account {OWNER}" in gone.stderr) == (2, True)


async def test_a_check_says_what_is_wrong_with_which_account_and_notes_it(sim: GmailSim, home: Path) -> None:
    await postroom(*with_token(sim, "--access-token", sim.token))
    well = await postroom("account", "check")
    assert well.code == 0, well.stdout
    assert "Gmail's quota has room." in well.stdout
    sim.control.revoke()
    ill = await postroom("account", "check", OWNER)
    assert ill.code == 1
    assert "cannot be renewed" in ill.stdout
    (account,) = await listed(home)
    assert (account.status, "cannot be renewed" in (account.last_error or "")) == ("login_ended", True)
    assert "login_ended" in (await postroom("account", "list")).stdout


@pytest.mark.req("PL-8")
async def test_the_doctor_ends_with_1_when_something_failed_and_says_what_to_do(sim: GmailSim, home: Path) -> None:
    await postroom(*with_token(sim, "--access-token", sim.token))
    well = await postroom("doctor")
    assert well.code == 0, well.stdout
    sim.control.skew = timedelta(hours=-1)
    ill = await postroom("doctor", "--json")
    assert ill.code == 1
    (finding,) = [each for each in json.loads(ill.stdout) if each["verdict"] == "failed"]
    assert (finding["check"], finding["account"]) == ("clock", OWNER)
    assert "ahead of that of 127.0.0.1" in finding["message"]


async def test_a_clock_an_hour_off_does_not_stop_a_login_but_is_said(sim: GmailSim, home: Path) -> None:
    sim.control.skew = timedelta(hours=1)
    done = await postroom(*with_token(sim, "--access-token", sim.token))
    assert done.code == 0
    assert done.stderr.startswith("warning: This machine's clock is 60 minutes behind that of 127.0.0.1. Set it")


async def test_a_base_address_that_is_not_gmail_says_so_and_stores_nothing(home: Path) -> None:
    async with answering(page(b"<html>It works!</html>")) as url:
        arguments = ["account", "add", "gmail", "--email", OWNER, "--api-base", url, "--access-token", "ya29.x"]
        done = await postroom(*arguments)
    assert done.code == 1
    assert "is not the Gmail API (status 200, text/html)" in done.stderr
    assert await listed(home) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--email", "nobody", "--access-token", "x"], "error: --email: 'nobody' is not an e-mail address"),
        (["--email", OWNER], "error: --client-secrets: is needed to log in by browser"),
        (["--email", OWNER, "--client-secrets", "x.json", "--access-token", "x"], "error: --access-token: give either"),
        (["--email", OWNER, "--client-secrets", "/nothing/x.json"], "error: /nothing/x.json: cannot be read"),
        (["--email", OWNER, "--api-base", "gmail", "--access-token", "x"], "error: --api-base: 'gmail' is not a web"),
        (
            ["--email", OWNER, "--api-base", "http://mail.example", "--access-token", "x"],
            "error: --api-base: 'http://mail.example' would send secrets unencrypted",
        ),
        (["--email", OWNER, "--api-base", "http://127.0.0.1:1"], "error: --access-token: is empty"),
    ],
)
def test_bad_usage_names_the_field_and_exits_with_2(home: Path, arguments: list[str], message: str) -> None:
    done = in_this_process("account", "add", "gmail", *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(message), done.stderr


async def test_the_same_address_at_another_server_is_refused_before_anybody_logs_in(sim: GmailSim, home: Path) -> None:
    await postroom(*with_token(sim, "--access-token", sim.token))
    done = await postroom("account", "add", "gmail", "--email", OWNER, "--access-token", "x")
    assert (done.code, f"known with {sim.url}" in done.stderr) == (2, True)


def test_every_command_explains_itself() -> None:
    for arguments in (["account"], ["doctor"], *(["account", name] for name in ("add", "list", "check", "remove"))):
        done = in_this_process(*arguments, "--help")
        assert (done.code, "Usage:" in done.stdout) == (0, True)
    assert "POSTROOM_ACCESS_TOKEN" in in_this_process("account", "add", "--help").stdout


@pytest.mark.req("IM-1")
async def test_an_imap_account_is_added_checked_and_removed_and_its_password_is_only_in_the_vault(home: Path) -> None:
    with dovecot() as server:
        where = ["--email", OWNER, "--host", "127.0.0.1", "--port", str(server.port), "--password-stdin"]
        refused = await postroom("account", "add", "imap", *where, stdin="wrong\n")
        assert refused.code == 1
        assert "refuses the login" in refused.stderr
        assert "Nothing was stored" in refused.stderr
        assert await listed(home) == []
        added = await postroom("account", "add", "imap", *where, stdin=f"{PASSWORD}\n")
        assert (added.code, added.stdout.strip()) == (0, f"Added {OWNER}.")
        [account] = await listed(home)
        assert (account.provider, account.api_base) == ("imap", f"imap://127.0.0.1:{server.port}")
        checked = await postroom("account", "check")
        assert (checked.code, "The login of owner@example.com is accepted" in checked.stdout) == (0, True)
        for path in home.rglob("*"):
            assert path.is_dir() or PASSWORD.encode() not in path.read_bytes(), path
        assert (await postroom("account", "remove", OWNER)).code == 0
        assert Vault(home).get(f"imap:{OWNER}") is None


@dataclass(frozen=True)
class KnownServer:
    """What discovery would find."""

    server: DiscoveredServers | None

    async def find(self, email: str) -> DiscoveredServers | None:
        return self.server


@pytest.mark.req("IM-1")
async def test_an_imap_account_is_added_by_its_address_alone_and_renewed_where_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ("account", "add", "imap", "--email", OWNER, "--password-stdin")
    with dovecot() as server:
        address = server.login().address
        elsewhere = DiscoveredServers(
            MailServers(address, "owner"), "in the DNS records of example.com", is_vouched=False
        )
        monkeypatch.setattr(App, "discovery", KnownServer(elsewhere))
        refused = await postroom(*add, stdin=f"{PASSWORD}\n")
        assert (refused.code, "give 127.0.0.1 as the host" in refused.stderr) == (2, True)
        assert await listed(home) == []
        monkeypatch.setattr(App, "discovery", KnownServer(replace(elsewhere, is_vouched=True)))
        added = await postroom(*add, "--user", OWNER, stdin=f"{PASSWORD}\n")
        assert added.code == 0, added.stderr
        assert f"Found {address} in the DNS records of example.com." in added.stderr
        monkeypatch.setattr(App, "discovery", KnownServer(None))
        again = await postroom(*add, stdin=f"{PASSWORD}\n")
        assert again.code == 0, "a login is renewed without looking for the server"
        [account] = await listed(home)
        assert account.api_base == str(address)
        assert GrantStore(Vault(home)).imap.load(OWNER).user == OWNER


@pytest.mark.req("IM-1")
async def test_an_imap_account_that_cannot_be_is_refused_before_anything_is_sent(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(App, "discovery", KnownServer(None))
    unknown = await postroom("account", "add", "imap", "--email", "ann@x.example", "--password-stdin", stdin="x\n")
    assert (unknown.code, "often it is imap.x.example" in unknown.stderr) == (2, True)
    mixed = await postroom("account", "add", "imap", "--email", OWNER, "--access-token", "t")
    assert (mixed.code, "imap takes a password" in mixed.stderr) == (2, True)
    for options, said in (
        (["--client-id", "x"], "--oauth google or --oauth microsoft"),
        (["--oauth", "google"], "client-secrets: is needed"),
        (["--oauth", "microsoft"], "client-id: is needed"),
        (["--oauth", "microsoft", "--client-id", "x", "--password-stdin"], "neither a password nor a name"),
    ):
        refused = await postroom("account", "add", "imap", "--email", OWNER, *options)
        assert (refused.code, said in refused.stderr) == (2, True), refused.stderr
    other = await postroom("account", "add", "gmail", "--email", OWNER, "--host", "imap.x.example")
    assert (other.code, "go with imap" in other.stderr) == (2, True)


@pytest.mark.req("IM-1")
async def test_a_login_by_browser_opens_an_imap_mailbox_and_is_renewed(sim: GmailSim, home: Path) -> None:
    """A real server that asks the stand-in whether a token is good."""
    browser = f"{sys.executable} -m tests.support.logins %s"
    with dovecot(token_check=f"{sim.url}/tokeninfo?access_token=") as server:
        where = ["--email", OWNER, "--host", "127.0.0.1", "--port", str(server.port), "--oauth", "google"]
        client = ["--client-secrets", str(secrets_file(home, sim.url))]
        added = await in_a_process("account", "add", "imap", *where, *client, BROWSER=browser)
        assert (added.code, added.stdout.strip()) == (0, f"Added {OWNER}."), added.stderr
        [account] = await listed(home)
        assert (account.provider, account.scopes) == (Provider.IMAP, frozenset({EVERYTHING}))
        first = grants(home).load(OWNER)
        assert isinstance(first, OAuthGrant)
        assert grants(home).imap.find(OWNER) is None
        sim.control.expire_tokens()
        checked = await postroom("account", "check")
        assert checked.code == 0, checked.stdout
        renewed = grants(home).load(OWNER)
        assert renewed.access_token != first.access_token
        for path in home.rglob("*"):
            assert path.is_dir() or first.refresh_token.encode() not in path.read_bytes(), path
        sim.control.revoke()
        ended = await postroom("account", "check")
        assert (ended.code, "Google no longer accepts the login" in ended.stdout) == (1, True), ended.stdout
        assert "--oauth google" in ended.stdout
        again = await postroom("account", "add", "imap", *where[:-2], "--password-stdin", stdin=f"{PASSWORD}\n")
        assert again.code == 0, again.stderr
        assert grants(home).find(OWNER) is None, "a password takes the place of the login by browser"
