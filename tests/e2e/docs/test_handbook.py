"""The handbook is true: every command in it exists, and those that can be run are run, page by page, as written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.exceptions import TyperException

from postroom import settings
from postroom.domain.errors import BadInput
from postroom.mail.categories.definitions import with_owner
from postroom.triage.rules.files import RulesFileFormat, parse_text
from postroom.web.sources import load_sources
from tests.support.handbook import (
    PAGES,
    ROOT,
    Command,
    NotACommand,
    blocks,
    commands,
    handbook_machine,
    inline_commands,
    missing_lines,
    read_against_the_commands,
    refuse_unknown,
)

WORLD = {
    "cd",
    "claude",
    "createdb",
    "curl",
    "docker",
    "git",
    "install",
    "openssl",
    "pg_restore",
    "pip",
    "python3",
    "source",
    "sqlite3",
    "systemctl",
    "systemd-run",
    "useradd",
}
"""Programs that are not ours. What they need is not on every machine: a service manager, containers, Google."""
SERVICES = {"up", "switchboard", "connector", "sim", "demo"}
"""Commands that go on until they are stopped; the end-to-end tests run them."""
RUN_PAGES = [page for page in PAGES if any(command.is_run for command in commands(page))]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_of_the_handbook_exists_with_its_options(page: Path) -> None:
    wrong = [f"{command.place}: {command.text}\n    {problem}" for command, problem in _wrong(page)]
    assert not wrong, "\n".join(wrong)


def _wrong(page: Path) -> Iterator[tuple[Command, object]]:
    for command in commands(page):
        try:
            _read(command)
        except (TyperException, NotACommand, ValueError) as error:
            yield command, error
    for command in inline_commands(page):
        try:
            refuse_unknown(command.text.split())
        except NotACommand as error:
            yield command, error


def _read(command: Command) -> None:
    program, *rest = command.words or [""]
    match program.removeprefix(".venv/bin/"):
        case "postroom":
            read_against_the_commands(command.words)
        case "make":
            targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            if unknown := set(rest) - set(targets):
                raise NotACommand(f"the Makefile has no {', '.join(unknown)}")
        case "":
            return
        case other if other not in WORLD:
            raise NotACommand(f"{other} is neither ours nor known to be needed")


@pytest.mark.parametrize("page", RUN_PAGES, ids=named)
async def test_the_commands_of_a_page_do_what_it_says(
    page: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with handbook_machine(home, tmp_path, monkeypatch) as world:
        for command in (command for command in commands(page) if command.is_run):
            assert command.words[1] not in SERVICES, f"{command.place} goes on for ever"
            done = await world.run(command)
            assert done.code == 0, f"{command.place}: {command.text}\n{done.stdout}{done.stderr}"
            missing = missing_lines(command.expected, done.stdout + done.stderr)
            told = "\n".join(missing)
            assert not missing, (
                f"{command.place}: {command.text}\nnot printed:\n{told}\nbut:\n{done.stdout}{done.stderr}"
            )


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_that_a_page_shows_is_one_that_postroom_reads(page: Path, home: Path) -> None:
    home.mkdir()
    for block in blocks(page):
        if block.language == "toml":
            assert not _complaint(home, "\n".join(block.lines)), f"{named(page)}:{block.line}"


def _complaint(home: Path, text: str) -> str | None:
    """What the reader of this kind of file says: sources, categories, rules, or settings, of which a value may be a
    placeholder."""
    content = tomllib.loads(text)
    try:
        if "source" in content:
            (home / "sources.toml").write_text(text)
            load_sources(home)
        elif "categories" in content:
            with_owner(text)
        elif {"rules", "directions", "guidance"} & set(content):
            parse_text(text, RulesFileFormat.TOML)
        else:
            (home / "postroom.toml").write_text(text)
            settings.load()
    except BadInput as error:
        return None if "..." in text and "no such setting" not in error.message else error.message
    return None


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_within_the_handbook_leads_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{named(page)} links to {target}"
