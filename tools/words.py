"""`make check`: no private metaphors and no stilted English in code, pages or documentation.

    python -m tools.words [PATH ...]

Looks at identifiers, comments, strings and file names alike; `_` and a change of case separate words, and a phrase may
run over a line break. docs/glossary.md has the words that are ours and are meant to be used.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = ("src", "docs", "deploy", "tools", "benchmarks", "tests/support", "*.md", "Makefile")
SUFFIXES = frozenset({".py", ".html", ".js", ".css", ".sql", ".md", ".txt", ".toml", ".service", ".yaml", ".yml", ""})

BANNED = {
    # Metaphors of our own, for which the field has a word.
    r"weather": "outage, backoff",
    r"crew": "worker pool",
    r"roads?": "transport, path",
    r"pulse": "heartbeat",
    r"park(ed|ing)": "deferred",
    r"desk": "services, or what it is",
    r"town": "what it is",
    r"told": "reported, said, shown; in a name: what it holds",
    # English that reads translated.
    r"whoever|whomever": "the process that, anyone who",
    r"nobody('s)?": "no one, nothing, no process",
    r"somebody('s)?|anybody('s)?|everybody('s)?": "someone, anyone, everyone, or who it is",
    r"could not be had": "is not available, could not be fetched",
    r"(nobody|no one) wanted|wanted anything": "say who asks for what",
    r"as it was meant": "as intended, or what went wrong",
    r"thick and fast": "quickly",
    r"had enough": "stopped reading, reached its limit",
    r"in (no one's|nobody's) way": "blocks",
    r"left away": "left out",
    r"back-off": "backoff",
}


@dataclass(frozen=True)
class Use:
    """A place where a banned word is the right one."""

    path: str
    text: str
    why: str


_MADE_UP_MAIL = "src/postroom/sim/gmail/generated"
_TABLES = "src/postroom/db/tables"

ALLOWED = (
    Use("tools/words.py", "", "this list"),
    Use("", "last_told_at", "a column since 0.1.0, and a field of `postroom sync status --json`"),
    Use("", "parked.json", "a file that connectors keep since 0.1.0"),
    Use(f"{_TABLES}/accounts.py", 'comment="null: nobody', "comments in the schema change by migration only"),
    Use(f"{_TABLES}/accounts.py", 'was told"', "the same"),
    Use(f"{_TABLES}/mail.py", "null: nobody", "the same"),
    Use(f"{_TABLES}/mail.py", 'comment="nobody', "the same"),
    Use(f"{_TABLES}/triage.py", "that nobody answered", "the same"),
    Use(f"{_MADE_UP_MAIL}/company_mail.py", "Directions and parking", "a subject; mailboxes stay the same bytes"),
    Use(f"{_MADE_UP_MAIL}/personal_mail.py", "Parking on our street", "a subject"),
    Use(f"{_MADE_UP_MAIL}/personal_mail.py", "nobody{dice", "a mail address"),
    Use(f"{_MADE_UP_MAIL}/writing.py", "nobody@gone.example", "a mail address"),
    Use(f"{_MADE_UP_MAIL}/languages.py", "everybody", "the words of a letter"),
    Use("src/postroom/reading/confinement.py", "NOBODY", "the user `nobody` of every Unix"),
    Use("src/postroom/reading/confinement.py", "`nobody`", "the same"),
    Use("docs/web-fetching.md", "`nobody`", "the same"),
    Use("tests/support/furnished_dashboards.py", "in town", "the words of a letter"),
    Use("tests/support/furnished_dashboards.py", "Somebody whom", "the words of a model"),
    Use("tests/support/injections.py", "Somebody asked", "the words of a letter"),
    Use("tests/support/furnished_dashboards.py", "desk@clinic.example", "a mail address"),
)


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}; say: {self.instead}"


def main(arguments: Sequence[str]) -> int:
    findings = [finding for path in files(arguments or PLACES) for finding in check(path)]
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


def files(places: Iterable[str]) -> Iterator[Path]:
    for place in places:
        for path in sorted(ROOT.glob(place)):
            yield from [path] if path.is_file() else sorted(each for each in path.rglob("*") if _is_ours(each))


def _is_ours(path: Path) -> bool:
    """Migrations are left out: they stay as they were released."""
    return path.is_file() and path.suffix in SUFFIXES and not {"__pycache__", "migrations"} & set(path.parts)


def check(path: Path) -> Iterator[Finding]:
    name = path.relative_to(ROOT).as_posix()
    uses = [use.text for use in ALLOWED if use.path in (name, "")]
    if "" not in uses:
        yield from findings_in(name, name, uses)
        yield from findings_in(name, path.read_text("utf-8"), uses)


def findings_in(name: str, text: str, allowed: Iterable[str] = ()) -> Iterator[Finding]:
    for use in allowed:
        text = text.replace(use, re.sub(r"\S", " ", use))
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ")
    for found in _PATTERN.finditer(words):
        instead = next(BANNED[each] for each in BANNED if re.fullmatch(_loose(each), found[0], re.IGNORECASE))
        yield Finding(name, words.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), instead)


def _loose(pattern: str) -> str:
    """A space of the pattern also matches a line break with the comment sign or indent that follows it."""
    return pattern.replace(" ", r"[\s#\"*>]+")


_PATTERN = re.compile(rf"\b(?:{'|'.join(_loose(each) for each in BANNED)})\b", re.IGNORECASE)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
