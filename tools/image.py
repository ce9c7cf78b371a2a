"""`make image`: the container image, on base images named by their digest, which `deploy/images.env` keeps.

A tag can be pointed at other bytes; a digest cannot. Digests are asked for once and then kept; `--renew` asks again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "deploy" / "images.env"
IMAGES = {"PYTHON_IMAGE": "python:3.13-slim", "POSTGRES_IMAGE": "postgres:18"}

Run = Callable[[Sequence[str]], str]


class NoImage(Exception):
    """Says what is missing and what to do."""


def docker(arguments: Sequence[str]) -> str:
    """What docker prints; its own words where it fails."""
    program = shutil.which("docker") or shutil.which("podman")
    if program is None:
        raise NoImage("Neither docker nor podman is installed here, and one of them builds the image.")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise NoImage((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
    return done.stdout.strip()


def resolved(image: str, run: Run) -> str:
    """`image@sha256:...` as the registry has it now."""
    try:
        run(["pull", "--quiet", image])
        names = run(["image", "inspect", "--format", '{{join .RepoDigests " "}}', image]).split()
    except NoImage as error:
        raise NoImage(
            f"The digest of {image} cannot be found out: {error} Run `make image` where its registry can be reached, "
            f"or copy {KEPT.parent.name}/{KEPT.name} from there."
        ) from None
    digests = [name.rpartition("@")[2] for name in names if "@sha256:" in name]
    if not digests:
        raise NoImage(f"{image} was pulled, but has no digest. Pull it from a registry and run `make image` again.")
    return f"{image}@{digests[0]}"


def kept(path: Path = KEPT) -> dict[str, str]:
    if not path.exists():
        return {}
    lines = [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def keep(images: Mapping[str, str], path: Path = KEPT) -> None:
    lines = [
        "# Base images by digest, written by `make image`.",
        *(f"{name}={image}" for name, image in images.items()),
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def pinned(run: Run, *, renew: bool, path: Path = KEPT) -> dict[str, str]:
    """Those that are kept and still wanted; the others are asked for, and kept."""
    known = (
        {} if renew else {name: image for name, image in kept(path).items() if image.startswith(IMAGES.get(name, "?"))}
    )
    images = {name: known.get(name) or resolved(image, run) for name, image in IMAGES.items()}
    keep(images, path)
    return images


def build(images: Mapping[str, str], run: Run) -> None:
    base = f"PYTHON_IMAGE={images['PYTHON_IMAGE']}"
    run(["build", "--file", "deploy/Dockerfile", "--build-arg", base, "--tag", "postroom", str(ROOT)])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--renew", action="store_true", help="ask the registries for the digests again")
    try:
        images = pinned(docker, renew=options.parse_args().renew)
        build(images, docker)
    except NoImage as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Built postroom on {images['PYTHON_IMAGE']}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
