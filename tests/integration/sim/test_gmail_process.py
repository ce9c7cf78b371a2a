"""The stand-in as a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from postroom.mailboxes.gmail.methods import ProfileName
from postroom.sim.gmail.server import limits_named
from tests.support.gmail_sim import api_client

_RUN = "from postroom.cli.sim import app; app()"


@contextmanager
def sim_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _RUN, "gmail", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_where_it_is_serves_and_ends_cleanly(number: signal.Signals) -> None:
    with sim_process("--messages", "200", "--seed", "3", "--quota", "2026") as process:
        assert process.stdout
        ready = json.loads(process.stdout.readline())
        assert set(ready) == {"url", "token", "email", "control_token"}
        assert ready["url"].startswith("http://127.0.0.1:")
        async with api_client(ready["url"], ready["token"]) as api:
            profile = (await api.get("profile")).json()
        assert (profile["messagesTotal"], profile["emailAddress"]) == (200, ready["email"])
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
        assert (process.returncode, rest, errors) == (0, "", "")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with sim_process("--port", port, "--messages", "1") as process:
            rest, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert rest == ""
    assert f"Port {port} on 127.0.0.1 is in use" in errors


def test_quota_profiles_are_those_of_the_price_list() -> None:
    assert limits_named("none").profile is None
    for name in ProfileName:
        profile = limits_named(name).profile
        assert profile is not None
        assert profile.name is name
