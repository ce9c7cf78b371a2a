"""`postroom demo`: see the post room work, on simulated mail, in a folder that is gone afterwards."""

from __future__ import annotations


def demo() -> None:
    """Show what there is so far, on simulated mail. Needs no account, touches no real mail, leaves nothing behind."""
    from postroom.cli.story import tell  # it needs every part there is: other commands start faster without

    tell()
