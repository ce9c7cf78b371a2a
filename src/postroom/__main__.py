"""`python -m postroom` is the same as `postroom`."""

from postroom.cli.main import run

run()
