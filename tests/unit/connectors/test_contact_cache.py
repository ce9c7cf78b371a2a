"""The contact cache: fresh or not used, and told when it is not."""

from __future__ import annotations

import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.connectors.guidance import CONTACTS_FILE, CacheState, ContactCache
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput


@pytest.mark.req("PQ-4")
def test_a_fresh_copy_is_used_and_survives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    cache = ContactCache(tmp_path / "c", clock)
    assert cache.current().state is CacheState.MISSING
    cache.replace(clock.now(), ["Ann@Friends.example", "a.b+c@googlemail.com"])
    assert cache.current().addresses == {"ann@friends.example", "ab@gmail.com"}
    again = ContactCache(tmp_path / "c", clock).current()
    assert again.addresses == {"ann@friends.example", "ab@gmail.com"}
    assert again.generated_at == clock.now()
    assert stat.S_IMODE(os.stat(tmp_path / "c" / CONTACTS_FILE).st_mode) == 0o600
    assert [each.name for each in (tmp_path / "c").iterdir()] == [CONTACTS_FILE]


@pytest.mark.req("PQ-4")
def test_a_copy_older_than_an_hour_is_not_used(tmp_path: Path, clock: ManualClock) -> None:
    cache = ContactCache(tmp_path, clock)
    cache.replace(clock.now(), ["ann@friends.example"])
    clock.advance(3_600)
    assert cache.current().state is CacheState.FRESH
    clock.advance(1)
    stale = cache.current()
    assert (stale.state, stale.addresses) == (CacheState.STALE, frozenset())
    patient = ContactCache(tmp_path, clock, timedelta(hours=2))
    assert patient.current().state is CacheState.FRESH
    assert cache.last_known == {"ann@friends.example"}


@pytest.mark.req("PQ-4")
def test_a_copy_from_the_future_is_not_used(tmp_path: Path, clock: ManualClock) -> None:
    cache = ContactCache(tmp_path, clock)
    cache.replace(clock.now() + timedelta(minutes=6), ["ann@friends.example"])
    assert cache.current().state is CacheState.STALE


@pytest.mark.req("PQ-4")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version":1}',
        b'{"version":2,"generated_at":"2026-01-01T00:00:00Z","addresses":[]}',
        b'{"version":1,"generated_at":"yesterday","addresses":[]}',
        b'{"version":1,"generated_at":"2026-01-01T00:00:00","addresses":[]}',
    ],
)
def test_a_damaged_copy_counts_as_missing(content: bytes, tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / CONTACTS_FILE).write_bytes(content)
    cache = ContactCache(tmp_path, clock)
    assert cache.current().state is CacheState.MISSING
    cache.replace(clock.now(), ["ann@friends.example"])
    assert ContactCache(tmp_path, clock).current().state is CacheState.FRESH


def test_an_export_without_a_zone_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(BadInput, match="generated_at"):
        ContactCache(tmp_path, clock).replace(clock.now().replace(tzinfo=None), [])
