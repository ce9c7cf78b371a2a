"""What the commands about approvals and review share: a list as a table or as JSON, and the items that are meant, by
their ids or all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from postroom.cli.terminal import print_json, print_table
from postroom.domain.errors import BadInput

T = TypeVar("T")

AllOption = Annotated[bool, typer.Option("--all", help="Everything that is on the list now.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="As the command `list` shows them.")]


def print_found(
    found: Sequence[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[Any]],
    *,
    json: bool,
    empty: str,
    plain: Callable[[T], Any] = lambda each: each,
) -> None:
    """`plain` is an item for programs."""
    if json:
        print_json([plain(each) for each in found])
    else:
        print_table(columns, [row(each) for each in found], empty=empty)


def require_choice(ids: Sequence[str], *, all_: bool) -> None:
    if all_ == bool(ids):
        raise BadInput("id", "name one or more as the command `list` shows them, or use --all")
