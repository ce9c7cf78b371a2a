"""`postroom token` as a person meets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from postroom.app import App
from postroom.cli.main import tree
from postroom.cli.session import with_app
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.roles import Role
from postroom.switchboard.tokens import NewToken, create_token

MISSING = "01990000-0000-7000-8000-000000000000"


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(tree(), ["token", *arguments])
    if isinstance(result.exception, Exception):
        raise result.exception
    return result


@pytest.mark.req("PL-6", "BF-3")
def test_a_token_is_printed_once_and_never_again(home: Path) -> None:
    made = run("create", "--role", "agent", "--name", "my assistant", "--expires-days", "30")
    [text] = re.findall(r"prt_[\w-]{43}", made.stdout)
    assert made.stdout.strip() == text
    listed = json.loads(run("list", "--json").stdout)
    assert [(one["role"], one["name"], one["state"]) for one in listed] == [("agent", "my assistant", "good")]
    assert text not in run("list").stdout + json.dumps(listed)
    for file in home.rglob("*"):
        assert not file.is_file() or text.encode() not in file.read_bytes()


def test_a_program_gets_the_token_as_json_and_can_revoke_it(home: Path) -> None:
    made = json.loads(run("create", "--role", "connector", "--identity", "me@example.org", "--json").stdout)
    assert made["token"].startswith("prt_")
    assert (made["name"], made["endpoint_identity"]) == ("connector", "me@example.org")
    assert "Revoked connector" in run("revoke", made["id"]).stdout
    [listed] = json.loads(run("list", "--json").stdout)
    assert (listed["state"], "token" in listed, "sha256" in listed) == ("revoked", False, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "--role", "agent", "--permission", "tokens"),
        ("create", "--role", "agent", "--expires-days", "0"),
        ("revoke", "42"),
        ("revoke",),
        ("revoke", MISSING, "--all"),
    ],
)
def test_what_does_not_fit_is_refused(home: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(BadInput):
        run(*arguments)


@pytest.mark.req("HW-4")
def test_a_token_is_made_for_named_permissions_and_one_mailbox_and_the_list_says_so(home: Path) -> None:
    some = ("--permission", "read", "--permission", "approve", "--mailbox", "Me@Example.org")
    made = json.loads(run("create", "--role", "dashboard", *some, "--json").stdout)
    assert made["permissions"] == ["read", "approve"]
    assert (made["endpoint_identity"], made["made_by"]) == ("me@example.org", None)
    listed = run("list").stdout
    assert all(word in listed for word in ("read, approve", "me@example.org", "owner"))


@pytest.mark.req("HW-4")
def test_revoking_says_how_many_fell_and_all_means_all(home: Path) -> None:
    mints = ("--permission", "tokens", "--permission", "read")
    root = json.loads(run("create", "--role", "dashboard", *mints, "--name", "root", "--json").stdout)

    async def make_one(app: App) -> None:
        new = NewToken(Role.DASHBOARD, "child")
        await app.database.write(lambda tx: create_token(tx, new, app.clock.now(), maker=root["id"]))

    with_app(make_one)
    assert root["id"] in run("list").stdout, "the child's maker"
    assert "Revoked root (dashboard), and 1 token that it made." in run("revoke", root["id"]).stdout
    run("create", "--role", "agent")
    assert "Revoked 1 token." in run("revoke", "--all").stdout
    assert {one["state"] for one in json.loads(run("list", "--json").stdout)} == {"revoked"}


def test_an_unknown_token_and_an_unknown_role_are_named(home: Path) -> None:
    with pytest.raises(NotFound, match="there is no token"):
        run("revoke", MISSING)
    assert run("create", "--role", "owner").exit_code == 2


def test_other_commands_do_not_pay_for_the_mcp_sdk() -> None:
    look = "import sys, postroom.cli.main; print([m for m in ('mcp', 'uvicorn', 'starlette') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
