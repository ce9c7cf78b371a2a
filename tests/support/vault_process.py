"""A process that uses the vault of a home folder, as its command line says."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from postroom.vault import Vault

ENTRY = "counter"


def count(vault: Vault, times: int) -> None:
    """Read, add one, write: right only if no other process writes in between."""
    for _ in range(times):
        with vault.locked(ENTRY):
            vault.put(ENTRY, str(int(vault.get(ENTRY) or b"0") + 1).encode())


def die_before_rename(vault: Vault) -> None:
    """Write a new value, and be killed when it is on disk but not yet in place."""

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Path.replace = killed  # type: ignore[method-assign, assignment]
    vault.put(ENTRY, b"new")


if __name__ == "__main__":
    home, task = Path(sys.argv[1]), sys.argv[2]
    if task == "count":
        count(Vault(home), int(sys.argv[3]))
    else:
        die_before_rename(Vault(home))
