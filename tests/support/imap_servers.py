"""Two more IMAP servers that others wrote: Cyrus, in a folder of its own, and pymap, in a thread of the test.

Cyrus is left out where it is not installed. Debian's `cyrus-imapd` and `dovecot-imapd` exclude each other, so to have
both, unpack the former beside the latter (`dpkg -x`) and name the folder in CYRUS_FOR_TESTS.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.dovecot import PASSWORD, MailServer, server_user, wait_until_up

_CYRUS = Path("/usr/lib/cyrus/bin")
_IMAPD = Path(os.environ.get("CYRUS_FOR_TESTS", "/")) / "usr/lib/cyrus/bin/imapd"
_CYRUS_SETTINGS = """
configdirectory: {root}/conf
partition-default: {root}/spool
defaultpartition: default
admins: cyrus
cyrus_user: {user}
altnamespace: yes
unixhierarchysep: yes
virtdomains: userid
allowplaintext: yes
sasl_mech_list: PLAIN
sasl_pwcheck_method: saslauthd
sasl_saslauthd_path: {root}/mux
"""
_CYRUS_SERVICES = """
START {{
  recover cmd="{bin}/ctl_cyrusdb -C {root}/imapd.conf -r"
}}
SERVICES {{
  imap cmd="{imapd} -C {root}/imapd.conf" listen="127.0.0.1:{port}" prefork=1
}}
EVENTS {{
}}
"""


def require_cyrus() -> None:
    if not (_IMAPD.exists() and (_CYRUS / "master").exists()):
        pytest.skip("Cyrus is not installed here: this real IMAP server is left out (cyrus-imapd, beside Dovecot)")


class _PasswordCheck:
    """Answers for Cyrus whether a password is right, as `saslauthd` does."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        path.chmod(0o777)
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listening.accept()
                with peer, peer.makefile("rwb") as stream:
                    fields = [stream.read(struct.unpack("!H", stream.read(2))[0]) for _ in range(4)]
                    answer = b"OK" if fields[1] == PASSWORD.encode() else b"NO"
                    stream.write(struct.pack("!H", len(answer)) + answer)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)


@dataclass
class Cyrus(MailServer):
    root: Path
    _process: subprocess.Popen[bytes] | None = None
    _check: _PasswordCheck | None = None

    def start(self) -> None:
        require_cyrus()
        user = server_user()
        for name in ("conf/proc", "conf/socket", "conf/db", "conf/log", "conf/msg", "conf/quota", "conf/user", "spool"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "imapd.conf").write_text(_CYRUS_SETTINGS.format(root=self.root, user=user.pw_name))
        services = _CYRUS_SERVICES.format(root=self.root, bin=_CYRUS, imapd=_IMAPD, port=self.port)
        (self.root / "cyrus.conf").write_text(services)
        as_user: dict[str, object] = {}
        if os.getuid() == 0:
            for path in (self.root, *self.root.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid)
            as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._check = _PasswordCheck(self.root / "mux")
        where = ["-C", str(self.root / "imapd.conf"), "-M", str(self.root / "cyrus.conf")]
        command = [str(_CYRUS / "master"), *where, "-p", str(self.root / "pid"), "-D"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True, **as_user)  # type: ignore[call-overload]
        process = self._process
        wait_until_up(self, lambda: process.poll() is None, lambda: "see the system's log")
        self._create_mailbox()

    def _create_mailbox(self) -> None:
        owner, self.email = self.email, "cyrus"
        with self.client() as client:
            said = client.create(f"user/{owner}")
            assert said[0] == "OK", said
        self.email = owner
        with self.client() as client:
            for name, use in (("Sent", "Sent"), ("Trash", "Trash"), ("Junk", "Junk"), ("Drafts", "Drafts")):
                said = client._simple_command("CREATE", f"{name} (USE (\\{use}))")
                assert said[0] == "OK", said

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._check is not None:
            self._check.close()


@contextlib.contextmanager
def cyrus() -> Iterator[Cyrus]:
    require_cyrus()
    root = Path(tempfile.mkdtemp(prefix="cyrus-"))
    root.chmod(0o755)
    server = Cyrus(root)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(root, ignore_errors=True)


@dataclass
class Pymap(MailServer):
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _end: asyncio.Event = field(default_factory=asyncio.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        thread = self._thread
        wait_until_up(self, thread.is_alive, lambda: "see above")
        with self.client() as client:
            for name in ("Sent", "Trash", "Junk", "Drafts"):
                client.create(name)

    async def _serve(self) -> None:
        from pymap.backend.dict import DictBackend
        from pymap.imap import IMAPService
        from pysasl.hashing import BuiltinHash

        where = {"host": ["127.0.0.1"], "port": self.port, "cert": None, "key": None, "tls": False}
        demo = {"demo_data": False, "demo_user": self.email, "demo_password": PASSWORD}
        more = {"inherited_sockets": None, "proxy_protocol": None, "passlib_cfg": None, "debug": False}
        quickly = BuiltinHash(rounds=1)  # every login of a test would take a third of a second to check its password
        backend, config = await DictBackend.init(Namespace(**where, **demo, **more), hash_context=quickly)
        config.apply_context()
        async with AsyncExitStack() as stack:
            await backend.start(stack)
            await IMAPService(backend, config).start(stack)
            await self._end.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        if self._thread is not None:
            self._thread.join(10)
        self._loop.close()


@contextlib.contextmanager
def pymap() -> Iterator[Pymap]:
    pytest.importorskip("pymap", reason="pymap is not installed: this IMAP server is left out")
    server = Pymap()
    try:
        server.start()
        yield server
    finally:
        server.stop()
