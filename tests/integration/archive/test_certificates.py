"""Removal certificates on disk: they only ever grow, and a crash leaves what was committed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.archive.certificates import ArchiveProof, Removal, RemovalAction, RemovalResult
from postroom.archive.messages import Provenance
from postroom.archive.shards.certificates import (
    Certificates,
    certificates_path,
    count_certificates,
    has_certificate,
    list_certificates,
    removed_among,
)
from postroom.archive.shards.reader import shards_on_disk
from postroom.archive.shards.verification import verify
from postroom.domain.errors import Fatal, NewerSchema
from tests.support.archives import ME

NOW = datetime(2026, 6, 1, tzinfo=UTC)
INBOX = Removal(RemovalAction.LABEL, "INBOX")
TRASH = Removal(RemovalAction.TRASH)


def proof(number: int, sha256: str = "aa" * 32) -> ArchiveProof:
    return ArchiveProof(
        f"18c{number:x}", f"18c{number:x}", sha256, 100 + number, f"{ME}/2024.db", number, Provenance.API
    )


def test_a_certificate_stands_as_intended_until_its_outcome_is_known(tmp_path: Path) -> None:
    with Certificates(tmp_path, ME) as book:
        [first, second] = book.certify("b1", INBOX, [proof(1), proof(2)], 1_000, NOW)
        assert [each.result for each in book.open()] == [RemovalResult.INTENDED] * 2
        assert count_certificates(tmp_path, ME) == {RemovalResult.INTENDED: 2}
        book.settle([first], RemovalResult.REMOVED, "", NOW)
        book.settle([second], RemovalResult.LEFT, "starred meanwhile", NOW)
        assert book.open() == []
    [newest, oldest] = list_certificates(tmp_path, ME)
    assert (oldest.proof, oldest.result, oldest.watermark, oldest.certified_at) == (
        proof(1),
        RemovalResult.REMOVED,
        1_000,
        NOW,
    )
    assert (newest.result, newest.detail) == (RemovalResult.LEFT, "starred meanwhile")
    assert count_certificates(tmp_path, ME) == {RemovalResult.REMOVED: 1, RemovalResult.LEFT: 1}


@pytest.mark.req("SY-10")
def test_equal_bytes_are_certified_once_for_an_action_and_other_bytes_again(tmp_path: Path) -> None:
    with Certificates(tmp_path, ME) as book:
        [first] = book.certify("b1", INBOX, [proof(1)], 1_000, NOW)
        [again] = book.certify("b2", INBOX, [proof(1)], 2_000, NOW)
        assert (again.number, again.batch) == (first.number, "b1")
        [other] = book.certify("b3", TRASH, [proof(1)], 2_000, NOW)
        [changed] = book.certify("b4", INBOX, [proof(1, "bb" * 32)], 2_000, NOW)
        assert len({first.number, other.number, changed.number}) == 3
        assert changed.proof.sha256 == "bb" * 32


@pytest.mark.req("SY-10")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE certificates SET sha256 = 'x'",
        "DELETE FROM certificates",
        "UPDATE outcomes SET result = 'removed'",
        "DELETE FROM outcomes",
        "INSERT OR REPLACE INTO certificates SELECT * FROM certificates",
        "INSERT OR REPLACE INTO outcomes SELECT outcome, certificate, 'removed', '', '' FROM outcomes",
        "REPLACE INTO certificates SELECT 99, batch, gmail_id, action, label, key, sha256, size, shard, row_id, "
        "provenance, watermark, certified_at FROM certificates",
    ],
)
def test_no_statement_changes_or_takes_away_what_was_written(tmp_path: Path, statement: str) -> None:
    with Certificates(tmp_path, ME) as book:
        book.certify("b1", INBOX, [proof(1)], 1_000, NOW)
    connection = sqlite3.connect(certificates_path(tmp_path, ME))
    before = connection.execute("SELECT * FROM ledger").fetchall()
    with pytest.raises(sqlite3.DatabaseError, match="never changed"):
        connection.execute(statement)
    assert connection.execute("SELECT * FROM ledger").fetchall() == before
    connection.close()


def test_plain_sqlite_reads_the_ledger(tmp_path: Path) -> None:
    with Certificates(tmp_path, ME) as book:
        book.settle(book.certify("b1", INBOX, [proof(1)], 1_000, NOW), RemovalResult.REMOVED, "", NOW)
    connection = sqlite3.connect(certificates_path(tmp_path, ME))
    rows = connection.execute("SELECT gmail_id, action, label, sha256, result FROM ledger").fetchall()
    assert rows == [("18c1", "label", "INBOX", "aa" * 32, "removed")]
    connection.close()


def test_looking_up_certificates_makes_no_file_and_takes_no_shard_for_one(tmp_path: Path) -> None:
    assert has_certificate(tmp_path, ME, ["18c1"]) == set()
    assert list_certificates(tmp_path, ME) == []
    assert removed_among(tmp_path, ME, INBOX, ["18c1"]) == set()
    assert not certificates_path(tmp_path, ME).exists()
    with Certificates(tmp_path, ME) as book:
        book.certify("b1", INBOX, [proof(1)], 1_000, NOW)
    assert has_certificate(tmp_path, ME, ["18c1", "18c2"]) == {"18c1"}
    assert removed_among(tmp_path, ME, INBOX, ["18c1"]) == set()
    assert shards_on_disk(tmp_path) == []
    assert verify(tmp_path).is_sound


@pytest.mark.req("SY-10")
def test_what_was_certified_survives_the_death_of_the_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tests.integration.archive.test_certificates import *\n"
        "book = Certificates(Path(sys.argv[1]), ME)\n"
        "book.certify('b1', INBOX, [proof(n) for n in range(300)], 1, NOW)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with Certificates(tmp_path, ME) as book:
        assert len(book.open()) == 300


def test_a_file_of_another_kind_or_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with Certificates(tmp_path, ME):
        pass
    connection = sqlite3.connect(certificates_path(tmp_path, ME))
    connection.execute("PRAGMA user_version = 99")
    connection.commit()
    with pytest.raises(NewerSchema):
        Certificates(tmp_path, ME)
    connection.execute("PRAGMA user_version = 1")
    connection.execute("PRAGMA application_id = 7")
    connection.close()
    with pytest.raises(Fatal, match="does not hold"):
        Certificates(tmp_path, ME)


def test_a_file_whose_maker_was_killed_first_counts_as_empty(tmp_path: Path) -> None:
    certificates_path(tmp_path, ME).parent.mkdir(parents=True)
    certificates_path(tmp_path, ME).touch()
    assert has_certificate(tmp_path, ME, ["18c1"]) == set()
    with Certificates(tmp_path, ME) as book:
        assert book.open() == []
