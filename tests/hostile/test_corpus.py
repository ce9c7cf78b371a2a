"""Every hostile kind, read by everything of ours that may meet it, within bounds of processor time, memory and growth.

The harness is in `measuring.py`, the kinds are in `kinds_*.py`, the readers and their bounds in `readers.py`. What the
fuzzer once found is in `seeds/`, a file each, and is read again here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from postroom.domain.errors import PostroomError
from tests.hostile import fuzzing
from tests.hostile.corpus import Kind, corpus
from tests.hostile.fuzzing import SEEDS, SLOWEST_S, TARGETS, keep_artifacts
from tests.hostile.measuring import SIZE, WORTH_COMPARING, faults_of
from tests.hostile.readers import READERS, Reader

pytestmark = pytest.mark.req("HW-1", "HW-2")

KINDS = corpus()
FAMILIES = sorted({kind.family for kind in KINDS.values()})
LARGE = 24 << 20
"""Bytes of the smaller item in `make chaos`; the other one is twice as large, which is as large as mail gets."""
OF_MAIL = {
    "structure",
    "headers",
    "words",
    "parameters",
    "addresses",
    "transfer",
    "attachments",
    "enclosed",
    "entities",
}

Faults = dict[str, list[str]]
Measure = Callable[..., Faults]


@pytest.fixture(scope="session")
def measure() -> Iterator[Measure]:
    """A process with all readers at hand, which forks a child for those that it is asked about."""
    command = [sys.executable, "-m", "tests.hostile.measuring"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        asking, answering = process.stdin, process.stdout
        assert asking is not None
        assert answering is not None

        def ask(family: str, **more: Any) -> Faults:
            names = [name for name, kind in KINDS.items() if kind.family == family]
            asking.write(json.dumps({"kinds": names, **more}) + "\n")
            asking.flush()
            found: Faults = json.loads(answering.readline())
            return found

        yield ask
        asking.close()


def test_there_are_three_hundred_hostile_kinds_and_no_two_are_the_same_bytes_for_the_same_reader() -> None:
    assert len(KINDS) >= 300
    made = {name: (kind.readers, kind.make(200)) for name, kind in KINDS.items()}
    often = Counter(made.values())
    assert [name for name, what in made.items() if often[what] > 1] == []


def test_every_reader_is_met_by_some_kind_and_every_kind_has_a_reader() -> None:
    met = {reader for kind in KINDS.values() for reader in kind.readers}
    assert met | {"parsed"} == set(READERS)


def test_the_fuzzer_mutates_every_family_that_fits_and_feeds_every_reader() -> None:
    """Bombs and PDFs do not: a few bytes of them keep their libraries busy for long, which the limited child ends."""
    fuzzed = {family for target in TARGETS.values() for family in target.families}
    assert {*FAMILIES} - fuzzed == {"sitemap-bombs", "feed-bombs", "pdfs"}
    assert fuzzed <= {*FAMILIES}
    assert {reader for target in TARGETS.values() for reader in target.readers} | {"parsed"} == set(READERS)


def _quadratic(data: bytes) -> None:
    """Within the bound at 2n, so that its growth alone gives it away."""
    ends = time.process_time() + 1.3 * (len(data) / (2 * SIZE)) ** 2
    while time.process_time() < ends:
        pass


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (_quadratic, "not linear"),
        (lambda data: int(data), "ValueError"),
        (lambda data: [data * 800], "MB of memory"),
        (lambda data: any(iter(int, 1)), "ended the process"),
    ],
    ids=["quadratic", "raising", "hungry", "endless"],
)
def test_the_harness_notices_what_it_is_there_for(
    read: Callable[[bytes], object], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(READERS, "bad", Reader(read))
    kind = Kind("bad.kind", "bad", lambda n: b"x" * n, ("bad",))
    [[said, *_]] = faults_of([(kind, "bad")]).values()
    assert fault in said


def test_what_a_reader_makes_on_first_use_is_not_taken_for_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    @cache
    def patterns() -> None:
        ends = time.process_time() + 2 * WORTH_COMPARING
        while time.process_time() < ends:
            pass

    monkeypatch.setitem(READERS, "late", Reader(lambda data: patterns()))
    kind = Kind("late.kind", "late", lambda n: b"x" * n, ("late",))
    assert faults_of([(kind, "late")]) == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_comes_is_read_or_refused_in_linear_time_and_little_memory(family: str, measure: Measure) -> None:
    assert measure(family) == {}


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", sorted(OF_MAIL))
def test_mail_as_large_as_mail_gets_costs_two_seconds_and_four_times_its_size(family: str, measure: Measure) -> None:
    assert measure(family, size=LARGE, readers=["parsed"]) == {}


@pytest.mark.parametrize("seed", sorted(SEEDS.rglob("*.seed")), ids=lambda path: f"{path.parent.name}-{path.stem[:12]}")
def test_what_the_fuzzer_once_found_is_read_or_refused(seed: Path) -> None:
    began = time.process_time()
    with suppress(PostroomError):
        TARGETS[seed.parent.name].read(seed.read_bytes())
    assert time.process_time() - began < SLOWEST_S


def test_what_took_the_fuzzer_too_long_is_kept_as_a_seed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "SEEDS", tmp_path)
    (tmp_path / "mail").mkdir()
    (tmp_path / "mail" / "artifact-timeout-0a").write_bytes(b"slow")
    keep_artifacts("mail")
    [kept] = (tmp_path / "mail").iterdir()
    assert (kept.suffix, kept.read_bytes()) == (".seed", b"slow")
