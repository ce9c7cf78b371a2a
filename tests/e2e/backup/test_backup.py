"""`postroom backup` as a person uses it: what it holds, what it refuses, and that it never leaves half of anything."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections import namedtuple
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from postroom import settings
from postroom.app.backup import create_backup, restore_backup
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.db import connect, opening
from postroom.db.opening import unmigrated
from postroom.db.snapshot import copy_sqlite, dump_postgres
from postroom.domain.errors import BadInput, Fatal, Retryable
from postroom.settings import DatabaseSettings, Settings
from postroom.vault import Vault
from tests.support.archives import ME, generated_mail
from tests.support.commands import environment
from tests.support.commands import in_this_process as postroom
from tests.support.databases import install


@pytest.fixture
def installed(home: Path) -> Path:
    """A home with a database, some mail, settings and a secret."""
    install(home)
    (home / "postroom.toml").write_text("[worker]\nconcurrency = 3\n")
    (home / "sources.toml").write_text("")
    Vault(home).put("a login", b"secret")
    with FileArchiveWriter(home / "archive") as archive:
        archive.store(ME, generated_mail(40))
    return home


@pytest.fixture
def backup(installed: Path, tmp_path: Path) -> Path:
    done = postroom("backup", "create", str(tmp_path / "backup"))
    assert done.code == 0, done.stderr
    return tmp_path / "backup"


def test_a_backup_is_for_its_owner_alone_and_holds_no_key_unless_told_to(
    installed: Path, backup: Path, tmp_path: Path
) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in backup.rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in (backup, *backup.rglob("*")) if path.is_dir()}
    assert (modes, folders) == ({0o600}, {0o700})
    assert not (backup / "vault.key").exists()
    with_key = postroom("backup", "create", str(tmp_path / "with-key"), "--with-key")
    assert "anyone who has this folder can read your mail and use your logins" in with_key.stdout
    assert (tmp_path / "with-key" / "vault.key").read_bytes() == (installed / "vault.key").read_bytes()


def test_a_restored_home_is_used_like_the_first(
    backup: Path, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new"
    done = postroom("backup", "restore", str(backup), "--into", str(new))
    assert done.code == 0, done.stderr
    assert "40 messages" in done.stdout
    assert f"Copy your vault.key to {new}" in done.stdout
    monkeypatch.setenv("POSTROOM_HOME", str(new))
    assert settings.load().worker.concurrency == 3
    with pytest.raises(Fatal, match="key is missing"):
        Vault(new).get("a login")
    shutil.copy2(installed / "vault.key", new)
    assert Vault(new).get("a login") == b"secret"
    assert postroom("verify", "--json").json["sound"]
    assert stat.S_IMODE(new.stat().st_mode) == 0o700


def test_nothing_that_is_there_is_written_over(installed: Path, backup: Path, tmp_path: Path) -> None:
    for arguments in (("create", str(backup)), ("restore", str(backup), "--into", str(installed))):
        done = postroom("backup", *arguments)
        assert done.code == 2
        assert "is not empty" in done.stderr
    assert postroom("backup", "restore", str(backup), "--into", str(backup / "manifest.json")).code == 2
    assert postroom("verify").code == 0


@pytest.mark.parametrize("path", ["postroom.db", f"archive/{ME}/2020.db", "postroom.toml", "archive/catalogue.db"])
def test_a_backup_in_which_a_byte_changed_is_refused_by_the_name_of_the_file(
    backup: Path, tmp_path: Path, path: str
) -> None:
    content = bytearray((backup / path).read_bytes())
    content[len(content) // 2] ^= 1
    (backup / path).write_bytes(content)
    done = postroom("backup", "restore", str(backup), "--into", str(tmp_path / "new"))
    assert done.code == 1
    assert f"{backup / path} is not what it was" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_backup_that_lacks_a_file_is_refused_before_anything_is_written(backup: Path, tmp_path: Path) -> None:
    (backup / "postroom.db").unlink()
    (backup / "postroom.db").symlink_to("/etc/hostname")
    done = postroom("backup", "restore", str(backup), "--into", str(tmp_path / "new"))
    assert done.code == 1
    assert f"{backup / 'postroom.db'} is missing" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_without_a_manifest_is_no_backup(backup: Path, tmp_path: Path) -> None:
    (backup / "manifest.json").unlink()
    done = postroom("backup", "restore", str(backup), "--into", str(tmp_path / "new"))
    assert done.code == 2
    assert "or one that was not finished" in done.stderr


def test_a_gap_of_the_archive_is_carried_along_and_told(installed: Path, tmp_path: Path) -> None:
    (installed / "archive" / ME / "2020.db").unlink()
    assert postroom("backup", "create", str(tmp_path / "backup")).code == 0
    done = postroom("backup", "restore", str(tmp_path / "backup"), "--into", str(tmp_path / "new"))
    assert done.code == 1
    assert f"{ME}/2020.db" in done.stdout
    assert (tmp_path / "new" / "postroom.db").exists(), "what is there is better than nothing"


def test_a_disk_without_room_is_told_before_and_when_it_fills_up_nothing_is_left(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, loaded = tmp_path / "backup", settings.load()
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1_000))
        with pytest.raises(Retryable, match="Nothing was written"):
            create_backup(loaded, folder)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("postroom.app.backup.creating.sync", full)
        with pytest.raises(Fatal, match="No space left on device"):
            create_backup(loaded, folder)
    assert not folder.exists()
    create_backup(loaded, folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Fatal, match="No space left on device"):
            restore_backup(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_sqlite_that_finds_the_disk_full_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real full disk: the kernel refuses what is larger than the process may write."""
    source = tmp_path / "big.db"
    connection = sqlite3.connect(source)
    connection.execute("CREATE TABLE t (x)")
    connection.execute("INSERT INTO t VALUES (zeroblob(3000000))")
    connection.commit()
    connection.close()
    copying = (
        "import resource, signal, sys; from pathlib import Path; from postroom.db.snapshot import copy_sqlite\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))\n"
        "copy_sqlite(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", copying, str(source), str(tmp_path / "copy.db")], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr.splitlines()[-1]
    assert "postroom.domain.errors" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_interrupted_leaves_nothing(installed: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The source is locked against reading, so the command is certain to be in the middle of it."""
    folder = tmp_path / "backup"
    holder = sqlite3.connect(installed / "postroom.db", isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("PRAGMA journal_mode = DELETE")
    holder.execute("BEGIN EXCLUSIVE")
    process = subprocess.Popen(
        [sys.executable, "-m", "postroom", "backup", "create", str(folder)],
        env=environment(installed, {}),
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (folder / "postroom.db").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        holder.execute("ROLLBACK")
        holder.close()
        code = process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert code == 130
    assert not folder.exists()


def test_a_key_that_is_not_in_the_home_cannot_be_copied(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    with pytest.raises(BadInput, match=r"no vault\.key"):
        create_backup(settings.load(), tmp_path / "backup", with_key=True)
    monkeypatch.setenv("POSTROOM_VAULT_KEY", "A" * 43 + "=")
    with pytest.raises(BadInput, match="POSTROOM_VAULT_KEY"):
        create_backup(settings.load(), tmp_path / "backup", with_key=True)
    assert not (tmp_path / "backup").exists()


def test_a_home_that_was_never_used_is_refused_rather_than_copied_empty(home: Path, tmp_path: Path) -> None:
    done = postroom("backup", "create", str(tmp_path / "backup"))
    assert done.code == 2
    assert "there is no database" in done.stderr
    assert not (tmp_path / "backup").exists()


def test_restored_settings_that_point_to_the_old_database_are_told(installed: Path, tmp_path: Path) -> None:
    (installed / "postroom.toml").write_text(f'[database]\nurl = "sqlite:///{installed / "postroom.db"}"\n')
    assert postroom("backup", "create", str(tmp_path / "backup")).code == 0
    done = postroom("backup", "restore", str(tmp_path / "backup"), "--into", str(tmp_path / "new"))
    assert "database.url" in done.stdout


def test_letters_that_may_have_been_sent_since_are_told(installed: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(installed / "postroom.db", isolation_level=None)) as database:
        database.execute(
            "INSERT INTO accounts (id, provider, email, api_base, scopes, status, created_at, updated_at) "
            "VALUES ('a', 'gmail', ?, 'https://example.org', '', 'active', '', '')",
            (ME,),
        )
        for number, (kind, status) in enumerate(
            [("forward", "queued"), ("archive", "queued"), ("forward", "completed")]
        ):
            database.execute(
                "INSERT INTO actions "
                "(id, account_id, gmail_id, origin, type, status, wanted_by, created_at, updated_at) "
                "VALUES (?, 'a', '1', 'person', ?, ?, 'me', '', '')",
                (str(number), kind, status),
            )
    assert postroom("backup", "create", str(tmp_path / "backup")).code == 0
    done = postroom("backup", "restore", str(tmp_path / "backup"), "--into", str(tmp_path / "new"))
    assert "Mail that was waiting to be sent when the backup was made: 1." in done.stdout


def test_pg_dump_that_is_missing_or_fails_is_told_without_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url("postgresql://me:hunter2hunter2@127.0.0.1:1/none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Fatal, match="pg_dump was not found"):
        dump_postgres(url, tmp_path / "one.dump")
    fake = tmp_path / "pg_dump"
    fake.write_text('#!/bin/sh\necho "$@" > seen; echo "server is too new" >&2; exit 1\n')
    fake.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Fatal, match="pg_dump failed: server is too new"):
        dump_postgres(url, tmp_path / "two.dump")
    assert "hunter2" not in (tmp_path / "seen").read_text()


def test_the_database_is_left_out_only_where_it_is_on_postgresql(installed: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="always part"):
        create_backup(settings.load(), tmp_path / "backup", with_database=False)
    elsewhere = Settings(home=installed, database={"url": "postgresql://me@127.0.0.1/none"})
    made = create_backup(elsewhere, tmp_path / "backup", with_database=False)
    assert made.database == ""
    assert restore_backup(tmp_path / "backup", tmp_path / "new").report.is_sound


def test_a_copy_is_true_of_one_moment_and_is_not_begun_anew_by_every_commit(tmp_path: Path) -> None:
    source = tmp_path / "busy.db"
    writing = sqlite3.connect(source, isolation_level=None)
    writing.execute("PRAGMA journal_mode = WAL")
    writing.execute("CREATE TABLE t (n INTEGER, x BLOB)")
    writing.executemany("INSERT INTO t VALUES (?, zeroblob(4000))", ((n,) for n in range(3_000)))
    steps = []

    def copied(count: int) -> None:
        steps.append(count)
        writing.execute("UPDATE t SET n = n + 1000000 WHERE n % 7 = 0")

    copy_sqlite(source, tmp_path / "copy.db", copied)
    writing.close()
    assert len(steps) > 2
    assert all(step >= 0 for step in steps), "it never went back to the start"
    copy = sqlite3.connect(tmp_path / "copy.db")
    assert copy.execute("SELECT count(*), max(n) FROM t").fetchone() == (3_000, 2_999)
    copy.close()


async def test_a_backup_of_an_older_version_is_brought_up_to_date_when_it_is_used(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    old = unmigrated(make_url(f"sqlite:///{home / 'postroom.db'}"), DatabaseSettings())
    await old.write(lambda tx: opening.upgrade_schema(tx.connection, "0004"))
    await old.close()
    create_backup(settings.load(), tmp_path / "backup")
    restored = restore_backup(tmp_path / "backup", tmp_path / "new")
    assert restored.letters == 0, "it could not send any yet"
    database = await connect(f"sqlite:///{tmp_path / 'new' / 'postroom.db'}")
    try:
        assert await database.read(lambda tx: opening.schema_revision(tx.connection)) == opening.SCHEMA_HEAD
    finally:
        await database.close()
