"""Dovecot, a real IMAP server, in a folder of its own on loopback; and a plain client that plays another program.

Tests that need it are skipped where it is not installed: `apt-get install dovecot-imapd`.
"""

from __future__ import annotations

import contextlib
import grp
import imaplib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from postroom.mailboxes.imap.connection import ImapLogin, Security, server_address
from tests.support.mail import OWNER

BINARY = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
PASSWORD = "not-a-secret"  # noqa: S105 - of a server that lives for one test
_PATIENCE_S = 60.0
_CONFIG = """
base_dir = {root}/run
state_dir = {root}/state
log_path = {root}/log
protocols = imap
listen = 127.0.0.1
ssl = {ssl}
{certificate}
disable_plaintext_auth = no
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {user}
default_vsz_limit = 0
first_valid_uid = 1
first_valid_gid = 0
mail_location = maildir:{root}/mail/%u
mail_fsync = never
maildir_very_dirty_syncs = no
mailbox_list_index = yes
auth_mechanisms = plain login{mechanisms}
auth_cache_size = {cache}
auth_failure_delay = 0
{tokens}
passdb {{
  driver = static
  args = password={password}
  mechanisms = plain login
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={root}/mail/%u
}}
namespace inbox {{
  inbox = yes
  separator = /
  mailbox Sent {{
    special_use = \\Sent
    auto = create
  }}
  mailbox Trash {{
    special_use = \\Trash
    auto = create
  }}
  mailbox Junk {{
    special_use = \\Junk
    auto = create
  }}
  mailbox Drafts {{
    special_use = \\Drafts
    auto = create
  }}
}}
service imap-login {{
  chroot =
  user = {user}
  process_min_avail = 1
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = {tls_port}
    ssl = yes
  }}
}}
service anvil {{
  chroot =
}}
service auth {{
  user = {user}
}}
service auth-worker {{
  user = {user}
}}
service stats {{
  user = {user}
}}
protocol imap {{
  mail_max_userip_connections = 50
  {capability}
}}
"""

_TOKENS = """passdb {{
  driver = oauth2
  mechanisms = oauthbearer xoauth2
  args = {root}/oauth2.conf
}}"""


def require_dovecot() -> None:
    if BINARY is None:
        pytest.skip("Dovecot is not installed here: the real IMAP server is left out (apt-get install dovecot-imapd)")


def free_port() -> int:
    """Below the ports that the system gives to clients: one of those may be taken when a killed server starts again."""
    while True:
        port = 12_000 + secrets.randbelow(20_000)
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port


@dataclass(kw_only=True)
class MailServer:
    """A server on loopback, as another program sees it."""

    email: str = OWNER
    port: int = field(default_factory=free_port)

    @contextlib.contextmanager
    def client(self) -> Iterator[imaplib.IMAP4]:
        """Another program that uses the mailbox."""
        client = imaplib.IMAP4("127.0.0.1", self.port, timeout=60)
        try:
            client.login(self.email, PASSWORD)
            yield client
        finally:
            with contextlib.suppress(OSError, imaplib.IMAP4.error):
                client.logout()

    def login(self) -> ImapLogin:
        return ImapLogin(self.email, server_address("127.0.0.1", self.port, Security.PLAIN), self.email, PASSWORD)

    def deliver(self, raw: bytes, folder: str = "INBOX", *, flags: str = "", received: int | None = None) -> None:
        with self.client() as client:
            append(client, raw, folder, flags=flags, received=received)


def wait_until_up(server: MailServer, is_running: Callable[[], bool], log: Callable[[], str]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and is_running():
        with contextlib.suppress(OSError, imaplib.IMAP4.error), server.client() as client:
            client.noop()
            return
        time.sleep(0.02)  # until a foreign program is up, there is nothing else to wait for
    raise AssertionError(f"{type(server).__name__} did not start: {log()}")


def wait_until_free(port: int) -> None:
    """A server that was killed leaves the port to its children until each of them has ended."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return
        time.sleep(0.005)  # they are not ours to wait for
    raise AssertionError(f"port {port} is still in use")


def server_user() -> pwd.struct_passwd:
    """Whom a server runs as: never root."""
    return pwd.getpwnam("mail") if os.getuid() == 0 else pwd.getpwuid(os.getuid())


@dataclass
class Dovecot(MailServer):
    """`capability` replaces what it says that it can."""

    root: Path
    capability: str = ""
    certificate: tuple[Path, Path] | None = None
    token_check: str = ""
    """Where it asks whether a token is good, with the token to be added."""
    tls_port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        require_dovecot()
        account = server_user()
        group = grp.getgrgid(account.pw_gid).gr_name
        for name in ("run", "state", "mail"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:
            for folder in (self.root, self.root / "mail", self.root / "state"):
                os.chown(folder, account.pw_uid, account.pw_gid)
        config = self.root / "dovecot.conf"
        if self.token_check:
            lines = (f"tokeninfo_url = {self.token_check}", "username_attribute = email")
            (self.root / "oauth2.conf").write_text("\n".join(lines) + "\n")
        cert = "" if self.certificate is None else "ssl_cert = <{}\nssl_key = <{}".format(*self.certificate)
        config.write_text(
            _CONFIG.format(
                root=self.root,
                user=account.pw_name,
                group=group,
                password=PASSWORD,
                port=self.port,
                tls_port=self.tls_port if self.certificate else 0,
                ssl="yes" if self.certificate else "no",
                certificate=cert,
                cache="0" if self.token_check else "1M",
                mechanisms=" oauthbearer xoauth2" if self.token_check else "",
                tokens=_TOKENS.format(root=self.root) if self.token_check else "",
                capability=f"imap_capability = {self.capability}" if self.capability else "",
            )
        )
        wait_until_free(self.port)
        command = [str(BINARY), "-F", "-c", str(config)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        log = self.root / "log"
        wait_until_up(self, self._is_running, lambda: log.read_text() if log.exists() else "no log")

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to all of its processes: it takes a second to end in peace, and nothing of it is needed again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def login(self, security: Security = Security.PLAIN, host: str = "127.0.0.1") -> ImapLogin:
        port = self.tls_port if security is Security.TLS else self.port
        return ImapLogin(self.email, server_address(host, port, security), self.email, PASSWORD)

    @property
    def maildir(self) -> Path:
        return self.root / "mail" / self.email

    def reset_uidvalidity(self, folder: str = "INBOX") -> None:
        """As after a server lost its indexes: the folder's messages are numbered anew."""
        self.kill()
        place = self.maildir if folder == "INBOX" else self.maildir / f".{folder}"
        for name in ("dovecot-uidlist", "dovecot.index", "dovecot.index.log", "dovecot.index.cache"):
            (place / name).unlink(missing_ok=True)
        for path in self.maildir.glob("dovecot.list.index*"):
            path.unlink()
        self.start()


def append(
    client: imaplib.IMAP4, raw: bytes, folder: str = "INBOX", *, flags: str = "", received: int | None = None
) -> None:
    date = "" if received is None else imaplib.Time2Internaldate(received)
    status, answer = client.append(f'"{folder}"', flags, date, raw)
    assert status == "OK", answer


@contextlib.contextmanager
def dovecot(**how: object) -> Iterator[Dovecot]:
    """In a short folder that the server's own user can enter; pytest's folders are closed to others."""
    root = Path(tempfile.mkdtemp(prefix="dovecot-"))
    root.chmod(0o755)
    server = Dovecot(root, **how)  # type: ignore[arg-type]
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(root, ignore_errors=True)
