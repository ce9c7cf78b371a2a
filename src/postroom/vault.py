"""Secrets at rest: one encrypted file an entry, in `vault/` of the home folder; the key is kept apart from them.

An entry is replaced as a whole or not at all, whenever the process dies. A file that was changed, moved to another
name, or written under another key is never taken for a secret: reading it fails and says what to do.
"""

from __future__ import annotations

import base64
import binascii
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from postroom.domain.errors import BadInput, Fatal, PostroomError, Retryable
from postroom.settings import VAULT_KEY_VARIABLE
from postroom.settings.files import file_stamp, sync_folder, write_temporary
from postroom.telemetry import logs

FOLDER = "vault"
KEY_FILE = "vault.key"

_HEADER = b"postroom-vault-1\n"
_NONCE_BYTES = 12
_KEY_BYTES = 32
_LONGEST_NAME = 300
_CHECK = "vault.check"
"""An entry of our own, made with the first secret: it tells a wrong key before anything is written under it."""
_HOW_TO_MAKE_A_KEY = "make one with `openssl rand -base64 32`"


class Lock:
    """A hold on one entry that excludes every other process, and every other holder in this one, until released."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


@lru_cache(64)
def _file_name(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:40] + ".sealed"


class Vault:
    """Named secrets under a home folder. `key` is the text of POSTROOM_VAULT_KEY; without it, `vault.key` holds it."""

    def __init__(self, home: Path, key: str | None = None) -> None:
        self._home = home
        self._folder = home / FOLDER
        self._cipher: AESGCM | None = None
        self._given_key = None if key is None else _parse_key(key, VAULT_KEY_VARIABLE)

    def __repr__(self) -> str:
        return f"Vault({str(self._folder)!r})"

    def get(self, name: str) -> bytes | None:
        """The secret of this name, or None if there is none."""
        sealed = _read(self._path(name))
        return None if sealed is None else self._open(self._key(), name, sealed)

    def put(self, name: str, secret: bytes) -> None:
        """Store a secret; it is on disk when this returns. A read-modify-write holds the entry's lock around it."""
        path = self._path(name)
        cipher = self._key_to_write_with()
        _replace(path, _seal(cipher, name, secret))

    def stamp(self, name: str) -> tuple[int, int, int] | None:
        """Changes with every secret that is stored under this name; None if there is none. Nothing is decrypted."""
        return file_stamp(self._path(name))

    def remove(self, name: str) -> bool:
        """Forget a secret; False if there was none."""
        path = self._path(name)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        sync_folder(self._folder)
        return True

    def check(self) -> bool:
        """True if the key opens this vault, False if nothing was ever stored; anything wrong is raised."""
        return self.get(_CHECK) is not None

    def try_lock(self, name: str) -> Lock | None:
        """The lock of this entry, or None while another holds it. The entry need not exist."""
        return self._lock(name, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Wait for the lock of this entry and hold it for the block."""
        lock = self._lock(name, fcntl.LOCK_EX)
        assert lock is not None  # noqa: S101 - a lock that is waited for is always had
        try:
            yield
        finally:
            lock.release()

    def _lock(self, name: str, how: int) -> Lock | None:
        path = self._path(name).with_suffix(".lock")
        self._make_folder()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _not_written(path, error) from error
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return Lock(descriptor)

    def _path(self, name: str) -> Path:
        """Names may hold anything, an address for example, so the file is named after their hash."""
        if not 0 < len(name) <= _LONGEST_NAME:
            raise BadInput("name", f"a vault entry's name has 1 to {_LONGEST_NAME} characters")
        return self._folder / _file_name(name)

    def _key(self) -> AESGCM:
        if self._cipher is None:
            key = self._given_key or _read_key(self._home / KEY_FILE)
            if key is None:
                raise Fatal(
                    f"The vault {self._folder} holds secrets, but its key is missing. Copy it back to "
                    f"{self._home / KEY_FILE} from where you keep it (a backup does not hold it), or set "
                    f"{VAULT_KEY_VARIABLE}. If it is lost, delete the folder and log in again."
                )
            self._cipher = AESGCM(key)
        return self._cipher

    def _key_to_write_with(self) -> AESGCM:
        """Also makes the folder, the key and the check entry when this is the first secret of all."""
        self._make_folder()
        if self.check():
            return self._key()
        if self._given_key is None and not (self._home / KEY_FILE).exists():
            _create_key(self._home / KEY_FILE)
        with self.locked(_CHECK):
            if not self.check():
                _replace(self._path(_CHECK), _seal(self._key(), _CHECK, b""))
        return self._key()

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Fatal(f"{self._folder} cannot be made: {error.strerror}. Check who owns the home folder.") from error

    def _open(self, cipher: AESGCM, name: str, sealed: bytes) -> bytes:
        body = sealed[len(_HEADER) :]
        if not sealed.startswith(_HEADER) or len(body) < _NONCE_BYTES:
            raise Fatal(
                f"An entry of the vault {self._folder} is damaged or was written by a newer Postroom. Restore the "
                "folder from a backup, or log in to the account again."
            )
        try:
            return cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], _HEADER + name.encode())
        except InvalidTag:
            source = VAULT_KEY_VARIABLE if self._given_key else str(self._home / KEY_FILE)
            raise Fatal(
                f"The vault {self._folder} cannot be opened: {source} is not the key it was written with, or a file "
                "in it was changed. Use the right key or restore the folder from a backup; if neither is to be had, "
                "delete the folder and log in to the accounts again."
            ) from None


def _seal(cipher: AESGCM, name: str, secret: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return _HEADER + nonce + cipher.encrypt(nonce, secret, _HEADER + name.encode())


def _parse_key(text: str, source: str) -> bytes:
    try:
        key = base64.b64decode(text.strip().replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise BadInput(source, f"a vault key is {_KEY_BYTES} bytes in base64; {_HOW_TO_MAKE_A_KEY}")
    logs.learn_secrets([text.strip()])
    return key


def _read_key(path: Path) -> bytes | None:
    content = _read(path)
    if content is None:
        return None
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise Fatal(
            f"{path} can be read by others (mode {mode:04o}), so the vault is not opened with it. "
            f"Run `chmod 600 {path}`; if others may have copied it, log in to the accounts again with a new key."
        )
    return _parse_key(content.decode("ascii", "replace"), str(path))


def _create_key(path: Path) -> None:
    """Complete or absent, never half written; when two processes create it, the first wins and both use it."""
    temporary = _write_temporary(path, base64.b64encode(os.urandom(_KEY_BYTES)) + b"\n")
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_folder(path.parent)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Fatal(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error


def _replace(path: Path, content: bytes) -> None:
    temporary = _write_temporary(path, content)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _write_temporary(path: Path, content: bytes) -> Path:
    try:
        return write_temporary(path, content)
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> PostroomError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Retryable(f"The disk that holds {path.parent} is full. Free some space; work goes on by itself.")
    return Fatal(f"{path} cannot be written: {error.strerror}. Nothing was changed.")
