"""`postroom settings`: what is set, and where each value comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom import settings
from postroom.cli.terminal import JsonOption, print_json, print_table
from postroom.settings import SettingSource

app = typer.Typer(no_args_is_help=True, help="Settings: their values, and where each comes from.")


@app.command("list")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Also what is at its default.")] = False,
    json: JsonOption = False,
) -> None:
    """List the settings as a process that starts now reads them. Secrets are not shown."""
    layers = settings.read_layers(settings.load().home)
    read = layers.settings()
    rows = []
    for _, group in settings.reference():
        for setting in (each for each in group if each.key):
            source = layers.source(setting.path)
            if everything or source is not SettingSource.DEFAULT:
                given = layers.environment.get(setting.path)
                rows.append((setting.key, settings.shown_value(read, setting.path), source, given and given.name))
    if json:
        print_json(
            [{"key": key, "value": value, "source": source, "variable": name} for key, value, source, name in rows]
        )
        return
    shown = ([key, value, name or _WORDS[source]] for key, value, source, name in rows)
    print_table(["setting", "value", "from"], shown, empty="Everything is at its default.")


_WORDS = {
    SettingSource.ENVIRONMENT: "environment",
    SettingSource.DASHBOARD: f"the dashboard ({settings.DASHBOARD_FILE})",
    SettingSource.FILE: settings.FILE_NAME,
    SettingSource.DEFAULT: "default",
}
