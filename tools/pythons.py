"""Run the unit tests with every newer Python that is on this machine, on the path or among pyenv's: `make pythons`.

Each gets an environment of its own in `.cache`, with the locked packages, which is used again while they are the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements-dev.lock"
WANTED = ("3.11", "3.12", "3.13", "3.14")
_TESTS = ("-q", "-m", "not chaos", "-n", "2", "-p", "no:cacheprovider", "tests/unit")


def candidates(version: str) -> Iterator[Path]:
    name = f"python{version}"
    if (there := shutil.which(name)) is not None:
        yield Path(there)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"), reverse=True)


def run(*command: str | Path, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=quiet, text=True, check=False)  # noqa: S603 - our own


def works(python: Path, version: str) -> bool:
    """Whether it is that Python, and no script of pyenv's that only says which it would be."""
    ask = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = run(python, "-c", ask, quiet=True)
    return done.returncode == 0 and done.stdout.strip() == version


def found() -> dict[str, Path]:
    """By version, without the one that runs this."""
    here = "{}.{}".format(*sys.version_info)
    working = {
        version: next((each for each in candidates(version) if works(each, version)), None)
        for version in WANTED
        if version != here
    }
    return {version: python for version, python in working.items() if python is not None}


def environment(python: Path, version: str) -> Path:
    """An environment with the locked packages and this tree, and its interpreter."""
    folder = ROOT / ".cache" / f"python-{version}"
    own, stamp = folder / "bin" / "python", folder / "installed"
    state = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text("utf-8") == state):
        uv = Path(sys.executable).parent / "uv"
        shutil.rmtree(folder, ignore_errors=True)
        install = (uv, "pip", "install", "--quiet", "--python", own)
        run(uv, "venv", "--quiet", "--python", python, folder).check_returncode()
        run(*install, "--require-hashes", "-r", LOCK).check_returncode()
        run(*install, "--no-deps", "--no-build-isolation", "--editable", ROOT).check_returncode()
        stamp.write_text(state, "utf-8")
    return own


def main() -> int:
    pythons = found()
    if not pythons:
        print(f"no other Python of {', '.join(WANTED)} is on this machine")
    failed = []
    for version, python in pythons.items():
        print(f"Python {version}:", flush=True)
        failed += [version] if run(environment(python, version), "-m", "pytest", *_TESTS).returncode else []
    if failed:
        print(f"the unit tests failed with Python {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
