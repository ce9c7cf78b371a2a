"""A process whose token has just been refused; it asks for another on command."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from postroom.domain.clock import SystemClock
from postroom.mailboxes.gmail.credentials import GrantStore, OAuthCredentials
from postroom.telemetry import logs
from postroom.vault import Vault


async def ask(home: str, email: str, rejected: str) -> str:
    credentials = OAuthCredentials(GrantStore(Vault(Path(home))), email, SystemClock())
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    tokens = await asyncio.gather(*(credentials.access_token(rejected=rejected) for _ in range(10)))
    assert len(set(tokens)) == 1
    return tokens[0]


if __name__ == "__main__":
    logs.configure(level="error")
    print(asyncio.run(ask(*sys.argv[1:])), flush=True)
