"""The commands of README and docs/, as a reader would copy them: found, checked against the real commands, run on a
machine of stand-ins, and compared with what the page prints.

A block that follows `<!-- run -->` is run by the tests, in order, with a home of its own for each page; all others are
only parsed. In a `console` block, lines after `$ ` are commands and the others their output.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup

from postroom import settings
from postroom.accounts.account import list_accounts
from postroom.accounts.account_jobs import job_of
from postroom.app import open_app
from postroom.app.worker import open_worker
from postroom.cli.main import COMMANDS
from postroom.cli.main import command as command_named
from postroom.domain.jobs import BACKFILL, HISTORY_SYNC
from postroom.sim.gmail.server import GmailSim, build, running_sim
from postroom.sim.model.server import ModelSim, running_model
from postroom.sim.web.server import SiteSim, running_site
from tests.support.archives import generated_mail
from tests.support.commands import CommandResult, in_this_process, postroom
from tests.support.databases import install
from tests.support.mail import letter, write_mbox
from tests.support.triage import INPUT_PRICE, OUTPUT_PRICE

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
        """The program and its arguments; what a shell adds (variables, pipes, comments) left out."""
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


_TREE = TyperGroup(name="postroom", commands={name: command_named(name) for name in COMMANDS})
_NAME = re.compile(r"[a-z][a-z-]*")


def _leaf(words: list[str]) -> tuple[TyperCommand | TyperGroup, list[str], list[str]]:
    """The command, what is left for it, and its full name. Placeholders (`NOUN`, an ellipsis) end the search."""
    command: object = _TREE
    rest, path = list(words[1:]), ["postroom"]
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


YOU = "you@gmail.com"
SITE = "gazette.example"
_LISTINGS = {
    "ACTION": ("actions", "list", "--rule", "Receipts", "--status", "completed"),
    "QUESTION": ("approvals", "list"),
    "JOB": ("jobs", "list"),
    "BACKFILL": ("backfill", "list"),
    "TOKEN": ("token", "list"),
    "RUN": ("web", "runs"),
}
"""What a name in capitals stands for: the first that this command lists."""
_CSV = "Name,E-mail 1 - Value\nAnn,ann@friends.example\n"


@dataclass(frozen=True)
class HandbookMachine:
    home: Path
    folder: Path
    gmail: GmailSim

    async def run(self, command: Command) -> CommandResult:
        """As it stands in the page, but for what only a person or Google can do."""
        words = command.words[1:]
        if words[:1] == ["worker"]:
            return await self._work()
        filled = [await self._filled(word) for word in self._logged_in(words)]
        # An import listens for signals, which only the main thread gets; and it asks no stand-in.
        done = in_this_process(*filled) if words[0] == "import" else await postroom(*filled)
        if ">" in command.text and done.code == 0:
            (self.folder / command.text.split(">")[-1].strip()).write_text(done.stdout)
        return done

    def _logged_in(self, words: list[str]) -> list[str]:
        """A login by browser becomes one with a token, at the stand-in."""
        if "--client-secrets" not in words:
            return words
        place = words.index("--client-secrets")
        own = ["--api-base", self.gmail.url, "--access-token", self.gmail.token]
        return [*words[:place], *own, *words[place + 2 :]]

    async def _filled(self, word: str) -> str:
        if word == "MESSAGE":
            return str(in_this_process("search", "in:inbox", "--json").json["hits"][0]["message"]["gmail_id"])
        if word not in _LISTINGS:
            return word
        listed = (await postroom(*_LISTINGS[word], "--json")).json
        entries = listed if isinstance(listed, list) else next(v for v in listed.values() if isinstance(v, list))
        return str(entries[0].get("id") or entries[0].get("action_id") or entries[0]["action"]["id"])

    async def _work(self) -> CommandResult:
        """One letter from a shop has arrived since the last time."""
        bill = letter("Invoice 4711", sender="Shop <orders@shop.example>", to=YOU)
        self.gmail.control.deliver(bill, frozenset({"INBOX", "UNREAD"}))
        async with open_app(settings.load()) as app, open_worker(app, until_idle=True) as worker:
            accounts = await app.database.read(list_accounts)  # whose minute has come, as it were
            due = [job_of(kind.name, account) for account in accounts for kind in (HISTORY_SYNC, BACKFILL)]
            await app.queue.enqueue(*due)
            await worker.run()
        return CommandResult(0, "", "")


@asynccontextmanager
async def handbook_machine(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, messages: int = 60
) -> AsyncIterator[HandbookMachine]:
    """Backfill is on, the model is made up, nothing waits longer than it must."""
    install(home)
    async with AsyncExitStack() as stack:
        gmail = await stack.enter_async_context(running_sim(build(messages, 3, YOU)))
        model = await stack.enter_async_context(running_model())
        site = await stack.enter_async_context(running_site(documents=6))
        for name, value in _variables(model).items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder)
        _files(home, folder, site)
        yield HandbookMachine(home, folder, gmail)


def _variables(model: ModelSim) -> Mapping[str, str]:
    return {
        "BACKFILL_ENABLED": "true",
        "POSTROOM_SYNC__RPS_START": "1000",
        "POSTROOM_SYNC__RPS_MAX": "1000",
        "POSTROOM_SYNC__SETTLE_S": "0",
        "POSTROOM_BACKFILL__RATE_LIMIT_PER_HOUR": "100000",
        "POSTROOM_WEB__FETCHES_PER_MINUTE": "6000",
        "POSTROOM_MODEL__PROVIDER": "compatible",
        "POSTROOM_MODEL__NAME": "simulated-small",
        "POSTROOM_MODEL__BASE_URL": model.url,
        "POSTROOM_MODEL__API_KEY": model.token,
        "POSTROOM_MODEL__INPUT_PRICE": str(INPUT_PRICE),
        "POSTROOM_MODEL__OUTPUT_PRICE": str(OUTPUT_PRICE),
    }


def _files(home: Path, folder: Path, site: SiteSim) -> None:
    """What the pages suppose to be there already."""
    (folder / "contacts.csv").write_text(_CSV)
    write_mbox(folder / "old.mbox", [mail.raw for mail in generated_mail(5)])
    (home / "sources.toml").write_text(
        f'[[source]]\nslug = "{SITE}"\ndomains = ["127.0.0.1"]\nallow_private = true\nmin_delay_ms = 0\n'
        f'max_delay_ms = 0\n[[source.endpoint]]\nname = "sitemap"\nmode = "sitemap"\nurl = "{site.url}/sitemap.xml"\n'
    )
