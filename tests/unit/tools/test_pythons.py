"""Which other Pythons of a machine the unit tests are run with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tools import pythons

_OTHERS = [version for version in pythons.WANTED if version != "{}.{}".format(*sys.version_info)]


def put(file: Path, script: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    file.chmod(0o755)
    return file


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def test_on_a_machine_without_others_there_are_none(machine: Path) -> None:
    assert pythons.found() == {}


def test_a_script_that_is_no_python_gives_way_to_one_that_works(machine: Path) -> None:
    version = _OTHERS[0]
    put(machine / "path" / f"python{version}", "echo 'command not found' >&2; exit 127")
    put(machine / f"pyenv/versions/{version}.1/bin/python{version}", "echo 2.7")
    works = put(machine / f"pyenv/versions/{version}.0/bin/python{version}", f"echo {version}")
    assert pythons.found() == {version: works}


def test_the_python_that_runs_this_is_no_other(machine: Path) -> None:
    own = "{}.{}".format(*sys.version_info)
    put(machine / "path" / f"python{own}", f"echo {own}")
    assert pythons.found() == {}
