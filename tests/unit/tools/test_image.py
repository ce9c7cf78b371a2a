"""`make image`: base images by digest, and a clear word where no registry can be reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tools.image import IMAGES, NoImage, build, kept, pinned

pytestmark = pytest.mark.req("HW-3")


class Docker:
    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem
        self.asked: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> str:
        self.asked.append(arguments)
        if self.problem is not None:
            raise NoImage(self.problem)
        return f"{arguments[-1].partition(':')[0]}@sha256:{'a' * 64}" if arguments[0] == "image" else ""


def test_digests_are_asked_for_once_kept_and_built_upon(tmp_path: Path) -> None:
    path, docker = tmp_path / "images.env", Docker()
    images = pinned(docker, renew=False, path=path)
    assert images == kept(path) == {name: f"{image}@sha256:{'a' * 64}" for name, image in IMAGES.items()}
    assert pinned(Docker("no registry"), renew=False, path=path) == images
    build(images, docker)
    assert f"PYTHON_IMAGE={images['PYTHON_IMAGE']}" in docker.asked[-1]


def test_without_a_registry_nothing_is_built_and_the_reason_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoImage, match=r"digest of python:3\.13-slim cannot be found out: no such host"):
        pinned(Docker("no such host."), renew=True, path=tmp_path / "images.env")
    assert not (tmp_path / "images.env").exists()
