"""The queries of the archive's benchmark, and the process that asks one contender:
`python -m benchmarks.archive_search postroom|notmuch HOME QUERIES_JSON ROUNDS`, or the one that reads attachments:
`python -m benchmarks.archive_search index HOME`.

Queries are chosen from a sample of the mail by how common their words are, and written in both languages; `theirs` is
None where notmuch has no such search. Our pages include a snippet; notmuch leaves that to its front ends.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.attachments import index_all

from benchmarks.archive_mail import OWNER, document_word
from benchmarks.peers.notmuch import Notmuch
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.searching import search_shards
from postroom.mail.parsing import ParsedMail, parse_mail
from postroom.reading.limited import close_shared_readers

_PER_CLASS = 10
_MEDIUM = (0.005, 0.03)
"""Of all messages, so many have a word that is neither rare nor common."""
_VERY_COMMON = 5
_WORD = re.compile(r"[^\W_]+")
_PLAIN = re.compile(r"(?!(?:and|not|xor|near|adj)$)[a-z][a-z0-9]{2,}")
"""Words that both cut and spell alike, and that are no operators of notmuch."""
LABELS = ("Finance", "Travel", "Family", "Projects/House", "To read")
LEFT_OUT = ("SPAM", "TRASH")
_RAREST_LABEL = "Projects/House"


@dataclass(frozen=True, slots=True)
class Query:
    kind: str
    ours: str
    theirs: str | None


@dataclass(frozen=True, slots=True)
class Words:
    common: Sequence[str]
    medium: Sequence[str]
    rare: Sequence[str]
    phrases: Sequence[str]
    senders: Sequence[str]
    subjects: Sequence[str]
    dates: Sequence[datetime]


def words_of(sample: Sequence[bytes]) -> Words:
    mails = [parse_mail(raw) for raw in sample]
    texts = [_WORD.findall(mail.best_text.lower()) for mail in mails]
    of_messages = Counter(word for text in texts for word in set(text) if _PLAIN.fullmatch(word))
    low, high = (share * len(mails) for share in _MEDIUM)
    triples = (text[at : at + 3] for text in texts for at in range(len(text) - 2))
    phrases = Counter(" ".join(words) for words in triples if all(map(_PLAIN.fullmatch, words)))
    return Words(
        common=[word for word, _ in of_messages.most_common(_VERY_COMMON)],
        medium=sorted(word for word, count in of_messages.items() if low <= count <= high),
        rare=sorted(word for word, count in of_messages.items() if count == 1),
        phrases=sorted(phrase for phrase, count in phrases.items() if 3 <= count <= high),
        senders=_repeated(mails, lambda mail: str(mail.from_[0]) if mail.from_ else ""),
        subjects=_repeated(mails, lambda mail: mail.subject),
        dates=sorted(mail.date for mail in mails if mail.date and mail.date > datetime(2017, 1, 1, tzinfo=UTC)),
    )


def _repeated(mails: Sequence[ParsedMail], text: Callable[[ParsedMail], str]) -> list[str]:
    """Words that stand in this text of at least two messages and of no more than a tenth of them."""
    found = Counter(word for mail in mails for word in set(_WORD.findall(text(mail).lower())))
    return sorted(word for word, count in found.items() if 2 <= count <= len(mails) // 10 and _PLAIN.fullmatch(word))


def queries(words: Words) -> list[Query]:
    dice = random.Random(3)
    makers: dict[str, Callable[[], tuple[str, str | None]]] = {
        "one word": lambda: _same(dice.choice(words.medium)),
        "rare word": lambda: _same(dice.choice(words.rare)),
        "very common word": lambda: _same(dice.choice(words.common)),
        "phrase": lambda: _same(f'"{dice.choice(words.phrases)}"'),
        "from:": lambda: _same(f"from:{dice.choice(words.senders)}"),
        "subject:": lambda: _same(f"subject:{dice.choice(words.subjects)}"),
        "two words": lambda: _same(f"{dice.choice(words.medium)} {dice.choice(words.medium)}"),
        "rare and very common word": lambda: _same(f"{dice.choice(words.rare)} {dice.choice(words.common)}"),
        "OR": lambda: _both(dice.choice(words.medium), dice.choice(words.medium)),
        "word NOT very common": lambda: _without(dice.choice(words.medium), dice.choice(words.common)),
        "NOT very common": lambda: _without("", dice.choice(words.common)),
        "word in a quarter": lambda: _in_quarter(dice.choice(words.medium), dice.choice(words.dates)),
        "label and word": lambda: _labelled(dice.choice(LABELS), dice.choice(words.medium)),
        "rarest label and very common": lambda: _labelled(_RAREST_LABEL, dice.choice(words.common)),
        "larger:": lambda: (f"larger:{dice.choice((60, 100, 300, 2_000))}K", None),
        "larger: and word": lambda: (f"larger:{dice.choice((10, 60, 100))}K {dice.choice(words.medium)}", None),
    }
    return [Query(kind, *make()) for kind, make in makers.items() for _ in range(_PER_CLASS)]


def document_queries(words: Words, documents: int) -> list[Query]:
    """Of words in attachments, where there are so many documents (`archive_mail.Kind.DOCUMENTS`)."""
    dice = random.Random(4)
    makers: dict[str, Callable[[], str]] = {
        "word of one document": lambda: document_word(dice.randrange(documents)),
        "attachment: and a word": lambda: f"attachment:{dice.choice(words.medium)}",
        "attachment: and a very common word": lambda: f"attachment:{dice.choice(words.common)}",
        "attachment: and another word": lambda: f"attachment:{dice.choice(words.medium)} {dice.choice(words.medium)}",
        "filename:": lambda: f"filename:report-{dice.randrange(documents)}",
        "filename: and a word": lambda: f"filename:{dice.choice(('pdf', 'docx'))} {dice.choice(words.medium)}",
    }
    return [Query(kind, make(), None) for kind, make in makers.items() for _ in range(_PER_CLASS)]


def _same(query: str) -> tuple[str, str]:
    return query, query


def _both(one: str, other: str) -> tuple[str, str]:
    return f"{one} OR {other}", f"{one} or {other}"


def _without(wanted: str, unwanted: str) -> tuple[str, str]:
    return f"{wanted} -{unwanted}".strip(), f"{wanted} and not {unwanted}" if wanted else f"not {unwanted}"


def _in_quarter(word: str, end: datetime) -> tuple[str, str]:
    start = end - timedelta(days=90)
    dates = f"date:@{int(start.timestamp())}..@{int(end.timestamp()) - 1}"
    return f"{word} after:{int(start.timestamp())} before:{int(end.timestamp())}", f"{word} and {dates}"


def _labelled(label: str, word: str) -> tuple[str, str]:
    return f'label:"{label}" {word}', f'tag:"{label}" and {word}'


PAGE = 20

Ask = Callable[[str], list[str]]
"""Gives the Message-IDs of the first page."""


def postroom(home: Path) -> Ask:
    search = search_shards(home / "archive")

    def ask(query: str) -> list[str]:
        page = search.search(query, limit=PAGE)
        assert not page.problems
        return [(hit.message.message_id or "").strip("<>") for hit in page.hits]

    return ask


def notmuch(home: Path) -> Ask:
    database = Notmuch(home / "config")
    return lambda query: [row.message_id for row in database.search(query, PAGE, LEFT_OUT)]


def measure(ask: Ask, queries: Sequence[str], rounds: int) -> dict[str, object]:
    pages = [ask(query) for query in queries]
    milliseconds: list[list[float]] = [[] for _ in queries]
    cpu_milliseconds: list[list[float]] = [[] for _ in queries]
    for _ in range(rounds):
        for number, query in enumerate(queries):
            started, cpu_before = time.perf_counter(), time.process_time()
            ask(query)
            milliseconds[number].append((time.perf_counter() - started) * 1_000)
            cpu_milliseconds[number].append((time.process_time() - cpu_before) * 1_000)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    times = {"milliseconds": milliseconds, "cpu_milliseconds": cpu_milliseconds}
    return {**times, "pages": pages, "peak_mb": peak_mb}


def index(home: Path) -> None:
    with FileArchive(home / "archive") as archive, archive.writer("the benchmark") as writer:
        index_all(archive, writer, OWNER)
        writer.merge_index(OWNER)
    close_shared_readers()


def main(contender: str, home: str, queries: str = "", rounds: str = "") -> None:
    if contender == "index":
        return index(Path(home))
    ask = {"postroom": postroom, "notmuch": notmuch}[contender](Path(home))
    print(json.dumps(measure(ask, json.loads(Path(queries).read_text()), int(rounds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
