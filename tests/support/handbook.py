"""The commands of README and docs/, as a reader would copy them: found, read against the real commands, and compared.

A block that follows `<!-- run -->` is run by the tests, in order, in a world of its own for each page; all others are
read only. In a `console` block, lines after `$ ` are commands and the others are what they print.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup

from postroom.cli.main import tree

ROOT = Path(__file__).parents[2]
_WANTED = ROOT / "docs" / "requirements.md"
"""Says what Postroom shall do, of which some is still to be built."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != _WANTED)]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*) *$")
_RUN = "<!-- run -->"
_SHELL = ("", "console", "sh", "bash", "shell")
_STOPS = {"|", "&&", "||", ";", "&", ">", ">>", "<", "2>"}
_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=.*")
_INLINE = re.compile(r"(?<!`)`(postroom [^`]+)`(?!`)")


@dataclass(frozen=True)
class Command:
    """One line of a shell, with what the page says it prints."""

    page: Path
    line: int
    text: str
    is_run: bool
    expected: list[str] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """The program and its arguments; what a shell adds (variables, pipes, comments) left away."""
        words = shlex.split(self.text, comments=True)
        while words and (_ASSIGNMENT.fullmatch(words[0]) or words[0] in ("export", "sudo")):
            words.pop(0)
        stop = next((place for place, word in enumerate(words) if word in _STOPS), len(words))
        return words[:stop]

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    is_run: bool
    lines: list[str]


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page."""
    lines = page.read_text("utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if not opened:
            number += 1
            continue
        end = next(n for n in range(number + 1, len(lines)) if lines[n].strip() == "```")
        inner = [line.removeprefix(opened["indent"]) for line in lines[number + 1 : end]]
        is_run = number > 0 and lines[number - 1].strip() == _RUN
        yield Block(page, number + 2, opened["language"], is_run, inner)
        number = end + 1


def commands(page: Path) -> list[Command]:
    """The commands of all shell blocks of a page, in order."""
    return [command for block in blocks(page) if block.language in _SHELL for command in _commands_of(block)]


def _commands_of(block: Block) -> Iterator[Command]:
    has_prompts = any(line.startswith("$ ") for line in block.lines)
    found: list[Command] = []
    pending = ""
    for number, line in enumerate(block.lines, block.line):
        is_command = bool(pending) or (line.startswith("$ ") if has_prompts else _looks_typed(block, line))
        if not is_command:
            if found and has_prompts:
                found[-1].expected.append(line)
            continue
        text = pending + (line if pending else line.removeprefix("$ "))
        pending = text.removesuffix("\\") if text.endswith("\\") else ""
        if not pending:
            found.append(Command(block.page, number, text.strip(), block.is_run))
    yield from found


def _looks_typed(block: Block, line: str) -> bool:
    """In a block that names its language every line is typed; in another only what begins with our own name."""
    if not line.strip() or line.lstrip().startswith("#"):
        return False
    return bool(block.language) or line.startswith("postroom ")


def inline_commands(page: Path) -> Iterator[Command]:
    """`postroom ...` within a sentence or a table."""
    is_inside = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if _FENCE.match(line) or line.strip() == "```":
            is_inside = not is_inside
        elif not is_inside:
            for text in _INLINE.findall(line):
                yield Command(page, number, text, False)


class NotACommand(Exception):
    """No such command, or it has no such option."""


def read_against_the_commands(words: list[str]) -> None:
    """Parse these words as the command line would; raises NotACommand, or what a parser raises."""
    command, rest, path = _leaf(words)
    is_only_a_group = isinstance(command, TyperGroup) and not command.invoke_without_command
    if is_only_a_group and not {"--help", "--version"} & set(rest):
        raise NotACommand(f"not a whole command: {' '.join(path)}")
    if "--help" not in rest:
        command.make_context(" ".join(path), rest)
    for word in rest:  # a command that takes a query leaves options that it does not know to it
        _refuse_unknown_option(command, word, path)


def refuse_unknown(words: list[str]) -> None:
    """Less strict, for a sentence: the command exists, as far as it is named, and so do its options."""
    command, rest, path = _leaf(words)
    for word in rest if isinstance(command, TyperCommand) else []:
        _refuse_unknown_option(command, word, path)


def _refuse_unknown_option(command: TyperCommand | TyperGroup, word: str, path: list[str]) -> None:
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if re.match(r"--[a-z]", word) and word.split("=")[0] not in known | {"--help"}:
        raise NotACommand(f"{' '.join(path)} has no option {word}")


_TREE = typer.main.get_command(tree())
_NAME = re.compile(r"[a-z][a-z-]*")


def _leaf(words: list[str]) -> tuple[TyperCommand | TyperGroup, list[str], list[str]]:
    """The command, what is left for it, and its full name. Placeholders (`NOUN`, an ellipsis) end the search."""
    command, rest, path = _TREE, list(words[1:]), ["postroom"]
    while isinstance(command, TyperGroup) and rest and _NAME.fullmatch(rest[0]):
        path.append(rest.pop(0))
        if path[-1] not in command.commands:
            raise NotACommand(f"no such command: {' '.join(path)}")
        command = command.commands[path[-1]]
    assert isinstance(command, TyperCommand | TyperGroup)
    return command, rest, path


def shape(line: str) -> str:
    """A line of output without what differs from run to run: numbers, times, ids, hashes, folders, spacing."""
    text = re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{20,}\b|\b[0-9a-f]{12,64}\b|prt_\S+", "ID", line)
    text = re.sub(r"https?://[^\s\"]+", "URL", text)
    text = re.sub(r"(?<![\w/])/[\w./~-]+|\S+/home\S*", "PATH", text)
    text = re.sub(r"\d+([-:.,T]?\d+)*(Z|\+00:00)?", "0", text)
    text = re.sub(r"\b0 ?(bytes|kB|MB|GB|TB|s|min|h|days|minutes)\b", "0 UNIT", text)
    return " ".join(text.split())


def missing_lines(expected: list[str], printed: str) -> list[str]:
    """The lines that a page promises and that are not in the output, in its order; `...` stands for any lines."""
    shapes = [shape(line) for line in printed.splitlines()]
    missing, place = [], 0
    for line in expected:
        wanted = shape(line)
        if not wanted or wanted == "...":
            continue
        found = next((n for n in range(place, len(shapes)) if _fits(wanted, shapes[n])), None)
        if found is None:
            missing.append(line)
        else:
            place = found + 1
    return missing


def _fits(wanted: str, line: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
    return re.fullmatch(pattern, line) is not None
