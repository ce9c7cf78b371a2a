"""Coverage-guided fuzzing of everything that reads foreign bytes, with atheris.

`python -m tests.hostile.fuzzing TARGET SECONDS` mutates the corpus and keeps what it finds in `seeds/TARGET/`: input
that raised what it must not, took too long or too much. The tests read every seed again, so a finding fails `make
test` until it is mended, and stays as a proof afterwards. `make chaos` fuzzes all targets for ten minutes together.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from postroom.domain.errors import PostroomError

SEEDS = Path(__file__).parent / "seeds"
_SMALL = 300
"""Bytes of the items that the fuzzer starts from."""
_LONGEST = 4_096
SLOWEST_S = 5
_ARTIFACT = "artifact-"


@dataclass(frozen=True)
class Target:
    readers: tuple[str, ...]
    families: tuple[str, ...]
    """Kinds of the corpus to begin with."""

    def read(self, data: bytes) -> None:
        from tests.hostile.readers import APART_HERE, READERS

        for name in self.readers:
            try:
                APART_HERE.get(name, READERS[name].read)(data)
            except PostroomError:
                continue


TARGETS = {
    "mail": Target(("mail",), ("structure", "transfer", "charsets", "attachments", "calendars", "enclosed")),
    "markup": Target(
        ("mail", "shown", "page"),
        (
            *("entities", "tags", "attributes", "comments", "unseen", "styles", "links"),
            *("nesting", "foreign", "writing"),
        ),
    ),
    "headers": Target(("mail", "shown"), ("headers", "words", "parameters", "addresses", "dates")),
    "queries": Target(("query",), ("queries",)),
    "contacts": Target(("vcards", "csv"), ("vcards", "csv")),
    "imports": Target(("mbox", "takeout", "package"), ("mbox", "takeout", "packages")),
    "rules": Target(
        ("rules_json", "rules_toml", "rules_yaml", "sources", "categories", "policy", "client_secrets"),
        ("rules", "toml", "yaml", "settings"),
    ),
    "sitemaps": Target(
        ("sitemap", "feed", "probe", "robots", "url", "decoded"), ("sitemaps", "feeds", "robots", "urls", "compressed")
    ),
    "documents": Target(("document", "shown_page"), ("documents",)),
    "servers": Target(("autoconfig", "dns"), ("autoconfig", "dns")),
    "wire": Target(
        ("envelope", "tool", "discord", "gmail", "batch", "model", "retry_after"),
        ("json", "gmail", "batches", "envelopes", "answers", "headers-of-answers"),
    ),
}


def fuzz(target: str, seconds: int) -> None:
    """Runs until the time is over or something is found; never returns, since libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["postroom", "email", "html", "json", "csv"]):
        import tests.hostile.readers  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        begin_with(target, Path(folder))
        (SEEDS / target).mkdir(parents=True, exist_ok=True)
        options = (f"-max_total_time={seconds}", f"-max_len={_LONGEST}", f"-timeout={SLOWEST_S}", "-rss_limit_mb=1024")
        atheris.Setup(
            [sys.argv[0], *options, f"-artifact_prefix={SEEDS / target}/{_ARTIFACT}", folder], keeping(target)
        )
        atheris.Fuzz()


def keeping(target: str) -> Callable[[bytes], None]:
    """The target, which writes down whatever raises before it lets it pass."""

    def read(data: bytes) -> None:
        try:
            TARGETS[target].read(data)
        except Exception:
            keep(target, data)
            raise

    return read


def keep(target: str, data: bytes) -> None:
    name = hashlib.sha256(data).hexdigest()[:16]
    (SEEDS / target / f"{name}.seed").write_bytes(data)


def keep_artifacts(target: str) -> None:
    """What took too long, too much memory, or the process with it: libFuzzer writes that down itself."""
    for artifact in (SEEDS / target).glob(f"{_ARTIFACT}*"):
        keep(target, artifact.read_bytes())
        artifact.unlink()


def begin_with(target: str, folder: Path) -> None:
    from tests.hostile.corpus import corpus

    for number, kind in enumerate(corpus().values()):
        if kind.family in TARGETS[target].families:
            (folder / f"{number:04}").write_bytes(kind.sized(_SMALL)[:_LONGEST])
    for seed in (SEEDS / target).glob("*.seed"):
        (folder / seed.stem).write_bytes(seed.read_bytes())


def fuzz_all(seconds: int) -> int:
    """Each target in a process of its own for its share of the time; how many of them found something."""
    share = str(max(1, seconds // len(TARGETS)))
    found = 0
    for target in TARGETS:
        print(f"fuzzing {target} for {share} s", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "tests.hostile.fuzzing", target, share], stderr=subprocess.PIPE, check=False
        )
        keep_artifacts(target)
        if done.returncode:
            found += 1
            print(done.stderr.decode("utf-8", "replace")[-2_000:], flush=True)
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--all":
        sys.exit(fuzz_all(int(sys.argv[2])))
    fuzz(sys.argv[1], int(sys.argv[2]))
