"""A sync as a process of its own imports what it needs, and not the rest of the product."""

from __future__ import annotations

import subprocess
import sys

import pytest

from postroom.accounts.observers import NoObserver, ObserverWhenNeeded

_CODE = """
import sys
import postroom.cli.mail.sync, postroom.sync.service, postroom.accounts.access
print(*(name for name in sys.modules if name.startswith(("postroom.", "httpx2", "smtplib", "rich.live"))))
"""


@pytest.mark.req("IM-4")
def test_a_sync_starts_without_what_only_changes_need() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    needless = ("postroom.actions", "postroom.triage", "postroom.dashboard", "postroom.switchboard")
    assert [name for name in done.stdout.split() if name.startswith(needless)] == []
    assert "postroom.cli.mail.handed_over" not in done.stdout.split()


@pytest.mark.req("IM-4")
def test_a_sync_starts_without_clients_of_other_servers_and_tables_that_it_seldom_reads() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    needless = (
        "httpx2",
        "postroom.accounts.enrolment",
        "postroom.accounts.mailbox_state",
        "postroom.db.tables.mail",
        "postroom.db.tables.triage",
        "postroom.mail.composing",
        "postroom.mailboxes.browser_login",
        "postroom.mailboxes.gmail.client",
        "postroom.mailboxes.gmail.transport",
        "postroom.mailboxes.imap.autoconfig",
        "postroom.mailboxes.imap.sending",
        "postroom.queue.context",
        "postroom.sync.archiver",
        "postroom.sync.removal",
        "rich.live",
        "smtplib",
    )
    assert [name for name in done.stdout.split() if name.startswith(needless)] == []


def test_an_observer_is_made_by_the_first_change_and_once() -> None:
    made: list[NoObserver] = []

    def make() -> NoObserver:
        made.append(NoObserver())
        return made[-1]

    observer = ObserverWhenNeeded(make)
    assert made == []
    for _ in range(2):
        observer.changed(None, "account", {}, ["1"])  # type: ignore[arg-type]
    assert len(made) == 1
