"""`postroom completion`: the script by which a shell completes commands, options and their values.

The script asks `postroom` itself, so it need not be renewed after an upgrade. Nothing is installed and no file of the
shell is changed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from postroom.cli.main import COMPLETION_VARIABLE, PROGRAM


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that you use.", show_default=False)],
) -> None:
    """Print the script that completes commands in your shell.

    Put the line for your shell into its start file, then open a new terminal:

    bash, in ~/.bashrc:  source <(postroom completion bash)

    zsh, in ~/.zshrc after compinit:  source <(postroom completion zsh)

    fish, in ~/.config/fish/config.fish:  postroom completion fish | source
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=shell))
