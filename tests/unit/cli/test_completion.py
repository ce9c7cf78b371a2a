"""Completion as a shell asks for it: commands by the table, and options and values of a command once it is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import in_this_process

_ASK = """
set -eu
source <(postroom completion bash)
complete -p postroom
asked() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _postroom_completion postroom; echo "${COMPREPLY[*]}"; }
asked postroom bac
asked postroom completion ""
asked postroom jobs re
asked postroom jobs list --sta
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="asks a real bash")
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    command = tmp_path / "postroom"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m postroom "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "POSTROOM_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        ["bash", "--norc", "-c", _ASK], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    registered, *answers = done.stdout.splitlines()
    assert registered == "complete -o default -F _postroom_completion postroom"
    assert answers == ["backup backfill", "bash zsh fish", "retry", "--state"]
    assert done.stderr == ""
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _postroom_completion postroom"),
        ("zsh", "compdef _postroom_completion postroom"),
        ("fish", "complete --command postroom"),
    ],
)
def test_every_shell_has_a_script_that_asks_postroom(shell: str, line: str) -> None:
    done = in_this_process("completion", shell)
    assert done.code == 0
    assert line in done.stdout
    assert f"_POSTROOM_COMPLETE=complete_{shell}" in done.stdout


def test_a_shell_that_is_not_known_is_refused_with_those_that_are() -> None:
    done = in_this_process("completion", "csh")
    assert done.code == 2
    assert all(name in done.stderr for name in ("bash", "zsh", "fish"))
