"""Build the wheel, install it as strangers do, see it work, and keep it in `dist/`: `make wheel`.

Four fresh environments, two at a time: the base install and `[all]`, each with the interpreter's own pip and with uv.
In each, from an empty folder, `postroom demo --story` and `postroom doctor` have to end well; the base install has to
name what it skips, and `[all]` to skip nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from postroom.demo.story import STORY
from postroom.domain.extras import Extra

ROOT = Path(__file__).parent.parent
_AT_ONCE = 2
_MESSAGES = "500"
_LIMIT_S = 600.0
_SKIPPED = "skipped:"
_TOOLS = ("pip", "setuptools", "wheel")
_HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


class Failed(Exception):
    """The wheel does not work; the message says where, and has what was printed."""


@dataclass(frozen=True)
class Trial:
    installer: str
    extra: str

    @property
    def name(self) -> str:
        return f"{'base' if not self.extra else f'[{self.extra}]'} with {self.installer}"


TRIALS = tuple(Trial(installer, extra) for extra in ("all", "") for installer in ("pip", "uv"))


async def run(*command: str | Path, cwd: Path, home: Path) -> str:
    """What the command prints. Nothing of this tree, and no setting of the person who looks, reaches it."""
    kept = {
        name: value for name, value in os.environ.items() if name not in _HIDDEN and not name.startswith("POSTROOM")
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**kept, "POSTROOM_HOME": str(home), "COLUMNS": "120"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise Failed(f"{_shown(command)} took longer than {_LIMIT_S:.0f} s") from None
    printed = out.decode("utf-8", "replace")
    if process.returncode != 0:
        raise Failed(f"{_shown(command)} ended with {process.returncode}:\n{printed[-6_000:]}")
    return printed


def _shown(command: tuple[str | Path, ...]) -> str:
    return " ".join([Path(command[0]).name, *map(str, command[1:])])


async def build(folder: Path) -> Path:
    """The wheel, from the sources of this tree."""
    await run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT, home=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


async def install(trial: Trial, wheel: Path, folder: Path) -> Path:
    """A fresh environment with the wheel in it."""
    here = partial(run, cwd=folder, home=folder / "home")
    wanted = f"{wheel}[{trial.extra}]" if trial.extra else str(wheel)
    environment, python = folder / "env", folder / "env/bin/python"
    own = getattr(sys, "_base_executable", sys.executable)
    if trial.installer == "pip":
        await here(own, "-m", "venv", environment)
        await here(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)
    else:
        uv = Path(sys.executable).parent / "uv"
        await here(uv, "venv", "--quiet", "--python", own, environment)
        await here(uv, "pip", "install", "--quiet", "--python", python, wanted)
    return environment


async def try_out(trial: Trial, wheel: Path, folder: Path) -> str:
    """What was seen, in a line; Failed where it does not work."""
    began = time.monotonic()
    empty = folder / "empty"
    empty.mkdir(parents=True)
    environment = await install(trial, wheel, folder)
    postroom = partial(run, environment / "bin/postroom", cwd=empty, home=folder / "home")
    story = await postroom("demo", "--story", "--messages", _MESSAGES)
    if problem := judged(trial, story):
        raise Failed(f"{trial.name}: {problem}\n{story}")
    await postroom("doctor")
    packages, size = await asyncio.to_thread(measured, environment)
    return f"{trial.name}: {packages} packages, {size:.0f} MB, {time.monotonic() - began:.0f} s"


def judged(trial: Trial, story: str) -> str | None:
    """What is wrong with a story that ended well; None if nothing is."""
    missing = [
        f"{number}. {step.title}" for number, step in enumerate(STORY, 1) if f"{number}. {step.title}" not in story
    ]
    if missing:
        return f"these steps are missing: {', '.join(missing)}"
    if trial.extra:
        return "a step was skipped" if _SKIPPED in story else None
    unnamed = [extra for extra in (Extra.WEB, Extra.MODELS) if extra.command not in story]
    return f"not named as missing: {', '.join(unnamed)}" if unnamed else None


def measured(environment: Path) -> tuple[int, float]:
    """Packages and megabytes, without the tools that install."""
    (site,) = environment.glob("lib/python*/site-packages")
    ours = [
        path for path in site.iterdir() if not path.name.lower().startswith((*_TOOLS, "_distutils", "pkg_resources"))
    ]
    files = [file for path in ours for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return sum(path.suffix == ".dist-info" for path in ours), sum(file.stat().st_size for file in files) / 1e6


async def try_all(trials: tuple[Trial, ...], say: Callable[[str], None]) -> bool:
    """All of them, however one ends; True if all went well."""
    slots = asyncio.Semaphore(_AT_ONCE)
    with tempfile.TemporaryDirectory(prefix="postroom-wheel-") as name:
        folder = Path(name)
        wheel = await build(folder / "dist")
        say(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")

        async def one(number: int, trial: Trial) -> bool:
            async with slots:
                place = folder / str(number)
                try:
                    say(await try_out(trial, wheel, place))
                except Failed as error:
                    say(f"FAILED {trial.name}: {error}")
                    return False
                finally:
                    shutil.rmtree(place, ignore_errors=True)
            return True

        went_well = all(await asyncio.gather(*(one(number, trial) for number, trial in enumerate(trials))))
        if went_well:
            kept = shutil.copy(wheel, _ensured(ROOT / "dist"))
            say(f"kept as {Path(kept).relative_to(ROOT)}")
        return went_well


def _ensured(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheel and try it in fresh environments.")
    parser.add_argument("--only", metavar="NAME", help="one of: " + ", ".join(trial.name for trial in TRIALS))
    only = parser.parse_args().only
    chosen = tuple(trial for trial in TRIALS if only in (None, trial.name))
    if not chosen:
        parser.error(f"there is no trial {only!r}")
    sys.exit(0 if asyncio.run(try_all(chosen, partial(print, flush=True))) else 1)


if __name__ == "__main__":
    main()
