"""mbsync (Debian's `isync`), an IMAP client that others wrote, on a server of the tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.dovecot import PASSWORD, Dovecot


def has_mbsync() -> bool:
    return shutil.which("mbsync") is not None


def mbsync_command(server: Dovecot, folder: Path, *, direction: str = "Pull", patterns: str = "*") -> list[str]:
    """The command that brings the server's mail to `folder/mail`; with the direction `All` also what changed there."""
    config = folder / "mbsyncrc"
    config.write_text(
        f"IMAPAccount a\nHost 127.0.0.1\nPort {server.port}\nUser {server.email}\nPass {PASSWORD}\nSSLType None\n"
        "AuthMechs PLAIN\n\nIMAPStore far\nAccount a\n\n"
        f"MaildirStore near\nPath {folder}/mail/\nInbox {folder}/mail/INBOX\nSubFolders Verbatim\n\n"
        f"Channel all\nFar :far:\nNear :near:\nPatterns {patterns}\nCreate Near\nSync {direction}\nSyncState *\n"
    )
    (folder / "mail").mkdir(exist_ok=True)
    return ["mbsync", "-q", "-c", str(config), "all"]


def star_with_mbsync(server: Dovecot, folder: Path, name: str, count: int) -> Sequence[Path]:
    """Have mbsync bring a folder of the server here, and bring back stars on its first messages. Returns those."""
    command = mbsync_command(server, folder, direction="All", patterns=name)
    subprocess.run(command, check=True, timeout=300)
    chosen = sorted((folder / "mail" / name).glob("*/*:2,*"))[:count]
    for path in chosen:
        flags = "".join(sorted({*path.name.partition(":2,")[2], "F"}))
        path.rename(path.with_name(f"{path.name.partition(':2,')[0]}:2,{flags}"))
    subprocess.run(command, check=True, timeout=300)
    return chosen
