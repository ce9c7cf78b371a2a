"""`postroom demo`: see the post room work, on simulated mail, in a folder that is gone afterwards."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    story: Annotated[
        bool, typer.Option("--story", help="Tell it here in the terminal and end, for people without a browser.")
    ] = False,
    messages: Annotated[
        int, typer.Option(min=500, max=1_000_000, help="How many messages the mailbox has; its ten years stay ten.")
    ] = 3_000,
) -> None:
    """See it all at work on a mailbox, a model and a web site that are simulated.

    Prints a link into the dashboard, and walks through a story by itself.
    Needs no account, touches no real mail, and leaves nothing behind.
    """
    from postroom import eventloop
    from postroom.cli.story import tell  # it needs every part there is: other commands start faster without

    eventloop.run(tell(messages, in_terminal=story))
