"""Secrets at rest: sealed, kept whole by crashes and races, and refused under the wrong key."""

from __future__ import annotations

import base64
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import BadInput, Fatal, Retryable
from postroom.telemetry import logs
from postroom.vault import FOLDER, KEY_FILE, Vault

ENTRY = "counter"
KEY = base64.b64encode(bytes(range(32))).decode()
OTHER_KEY = base64.b64encode(bytes(32)).decode()
SECRET = b"1//a-refresh-token-that-nobody-may-see"


def sealed_files(home: Path) -> list[Path]:
    return sorted((home / FOLDER).glob("*.sealed"))


def test_a_secret_comes_back_and_a_missing_one_is_none(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    assert vault.get("gmail:me@example.com") is None
    assert vault.check() is False
    vault.put("gmail:me@example.com", SECRET)
    assert Vault(tmp_path).get("gmail:me@example.com") == SECRET
    assert Vault(tmp_path).check() is True
    assert vault.remove("gmail:me@example.com") is True
    assert vault.remove("gmail:me@example.com") is False
    assert vault.get("gmail:me@example.com") is None


def test_reading_an_unused_vault_leaves_no_trace(tmp_path: Path) -> None:
    Vault(tmp_path).get("x")
    assert list(tmp_path.iterdir()) == []


@given(name=st.text(min_size=1, max_size=300), secret=st.binary(max_size=2_000))
def test_any_name_is_just_a_name_and_any_bytes_come_back(
    tmp_path_factory: pytest.TempPathFactory, name: str, secret: bytes
) -> None:
    if any(0xD800 <= ord(character) <= 0xDFFF for character in name):
        return
    home = tmp_path_factory.mktemp("vault")
    Vault(home, KEY).put(name, secret)
    assert Vault(home, KEY).get(name) == secret
    assert {path.name for path in home.iterdir()} == {FOLDER}
    assert all(path.parent == home / FOLDER for path in home.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["", "x" * 301])
def test_a_name_that_is_empty_or_endless_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="1 to 300"):
        Vault(tmp_path).put(name, SECRET)


@pytest.mark.req("PL-6")
def test_nothing_secret_is_readable_on_disk_or_for_others(tmp_path: Path) -> None:
    Vault(tmp_path).put("x", SECRET)
    for path in tmp_path.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
        assert path.is_dir() or SECRET not in path.read_bytes()


@pytest.mark.req("PL-6")
def test_the_key_is_in_no_repr_and_in_no_log(tmp_path: Path) -> None:
    vault = Vault(tmp_path, KEY)
    assert KEY not in repr(vault)
    assert KEY not in logs.clean(f"the key is {KEY}")


@pytest.mark.req("PL-6")
def test_the_wrong_key_opens_nothing_overwrites_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    Vault(tmp_path, KEY).put("x", SECRET)
    before = [path.read_bytes() for path in sealed_files(tmp_path)]
    wrong = Vault(tmp_path, OTHER_KEY)
    for attempt in (lambda: wrong.get("x"), wrong.check, lambda: wrong.put("y", b"2"), lambda: wrong.put("x", b"2")):
        with pytest.raises(Fatal, match="POSTROOM_VAULT_KEY is not the key it was written with"):
            attempt()
    assert [path.read_bytes() for path in sealed_files(tmp_path)] == before


def test_a_vault_whose_key_file_is_lost_is_not_given_a_new_key(tmp_path: Path) -> None:
    Vault(tmp_path).put("x", SECRET)
    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(Fatal, match="its key is missing"):
        Vault(tmp_path).put("y", SECRET)
    assert not (tmp_path / KEY_FILE).exists()


def test_a_key_file_that_others_can_read_is_refused_with_the_command_to_run(tmp_path: Path) -> None:
    Vault(tmp_path).put("x", SECRET)
    (tmp_path / KEY_FILE).chmod(0o640)
    with pytest.raises(Fatal, match=r"mode 0640.*chmod 600"):
        Vault(tmp_path).get("x")


@pytest.mark.parametrize("text", ["", "short", "not base64!", KEY[:-8], KEY + KEY])
def test_a_key_that_is_none_is_refused_by_the_variables_name_without_being_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput) as refusal:
        Vault(tmp_path, text)
    assert refusal.value.field == "POSTROOM_VAULT_KEY"
    assert not text or text not in refusal.value.problem


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "version", "swap"])
def test_a_file_that_was_tampered_with_is_never_taken_for_a_secret(tmp_path: Path, harm: str) -> None:
    vault = Vault(tmp_path, KEY)
    vault.put("a", b"one")
    first = set(sealed_files(tmp_path))
    vault.put("b", b"two")
    (path,) = set(sealed_files(tmp_path)) - first
    content = path.read_bytes()
    other = {
        "flip": content[:-1] + bytes([content[-1] ^ 1]),
        "cut": content[:-1],
        "empty": b"",
        "version": b"postroom-vault-2\n" + content[17:],
        "swap": next(candidate.read_bytes() for candidate in first if len(candidate.read_bytes()) == len(content)),
    }[harm]
    path.write_bytes(other)
    with pytest.raises(Fatal, match="log in"):
        vault.get("b")
    assert vault.get("a") == b"one"


def count(vault: Vault, times: int) -> None:
    """In a process of its own: read, add one, write; right only if no other process writes in between."""
    for _ in range(times):
        with vault.locked(ENTRY):
            vault.put(ENTRY, str(int(vault.get(ENTRY) or b"0") + 1).encode())


def die_before_rename(vault: Vault) -> None:
    """In a process of its own: write a new value, and be killed when it is on disk but not yet in place."""

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Path.replace = killed  # type: ignore[method-assign, assignment]
    vault.put(ENTRY, b"new")


def test_a_process_killed_between_write_and_rename_keeps_the_old_value(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.put(ENTRY, b"old")
    done = subprocess.run([sys.executable, "-m", __name__, str(tmp_path), "die"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / FOLDER).glob("*.tmp")) != []
    assert vault.get(ENTRY) == b"old"
    with vault.locked(ENTRY):
        vault.put(ENTRY, b"newer")
    assert vault.get(ENTRY) == b"newer"


def test_processes_that_start_together_agree_on_one_key_and_lose_no_update(tmp_path: Path) -> None:
    command = [sys.executable, "-m", __name__, str(tmp_path), "count", "40"]
    for process in [subprocess.Popen(command) for _ in range(3)]:
        assert process.wait(60) == 0
    assert Vault(tmp_path).get(ENTRY) == b"120"


def test_a_held_lock_is_seen_by_others_and_ends_with_its_holder(tmp_path: Path) -> None:
    vault, other = Vault(tmp_path), Vault(tmp_path)
    lock = vault.try_lock("x")
    assert lock is not None
    assert other.try_lock("x") is None
    lock.release()
    for name in ("x", "y"):
        again = other.try_lock(name)
        assert again is not None
        again.release()


def test_a_disk_that_takes_no_more_leaves_the_old_value_and_no_scraps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(tmp_path, KEY)
    vault.put("x", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Retryable, match="is full"):
        vault.put("x", b"new")
    assert vault.get("x") == b"old"
    assert list((tmp_path / FOLDER).glob("*.tmp")) == []


if __name__ == "__main__":
    home, task = Path(sys.argv[1]), sys.argv[2]
    if task == "count":
        count(Vault(home), int(sys.argv[3]))
    else:
        die_before_rename(Vault(home))
