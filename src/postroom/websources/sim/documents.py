"""The gazette's documents, made up from a seed: the same seed gives the same documents, on the same days."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime

from postroom.websources.sim.pdf import write_pdf
from postroom.websources.sim.reply import Reply, html

_KINDS = ("Pravilnik", "Odluka", "Uredba", "Naredba", "Obavijest", "Zakon")
_TOPICS = (
    *(
        "porezu na dohodak",
        "paušalnom oporezivanju obrta",
        "fiskalizaciji u prometu gotovinom",
        "PDV-u za male obveznike",
    ),
    *("doprinosima za obvezna osiguranja", "evidenciji radnog vremena", "rokovima za predaju prijave", "naknadi štete"),
)
_SENTENCES = (
    "Ovim se aktom uređuju obveze obveznika i rokovi u kojima ih je potrebno ispuniti.",
    "Prijava se podnosi elektroničkim putem najkasnije do dvadesetog dana u mjesecu.",
    "Obveznik koji ne postupi prema odredbama ovoga članka plaća zateznu kamatu.",
    "Nadležno tijelo donosi rješenje u roku od trideset dana od dana primitka zahtjeva.",
    "Iznosi navedeni u prilogu usklađuju se jednom godišnje prema objavljenom indeksu.",
    "Na pitanja koja nisu uređena ovim aktom primjenjuju se odredbe općega zakona.",
    "Obrazac se objavljuje na mrežnim stranicama i sastavni je dio ovoga akta.",
    "Žalba ne odgađa izvršenje rješenja, osim ako zakonom nije drukčije propisano.",
)
_FIRST_DAY, _LAST_DAY = date(2023, 1, 1), date(2026, 10, 31)
_EVERY_PDF = 10


@dataclass(frozen=True, slots=True)
class GazetteDocument:
    number: int
    day: date
    title: str
    paragraphs: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"/documents/{self.number}" + (".pdf" if self.number % _EVERY_PDF == 0 else "")


class Gazette:
    """Documents 1 to `count`, the older first. A document can be given a new version."""

    def __init__(self, count: int, seed: int) -> None:
        self._seed = seed
        span = (_LAST_DAY - _FIRST_DAY).days
        dice = random.Random(seed)  # noqa: S311 (made-up content)
        days = sorted(dice.randrange(span) for _ in range(count))
        self.documents = [self._document(number, days[number - 1]) for number in range(1, count + 1)]
        self.versions: dict[int, int] = {}

    def of_year(self, year: int) -> list[GazetteDocument]:
        return [document for document in self.documents if document.day.year == year]

    @property
    def years(self) -> list[int]:
        return sorted({document.day.year for document in self.documents})

    def by_path(self, path: str) -> GazetteDocument | None:
        number = path.removeprefix("/documents/").removesuffix(".pdf")
        found = (
            self.documents[int(number) - 1]
            if number.isdecimal() and 0 < int(number[:9]) <= len(self.documents)
            else None
        )
        return found if found is not None and found.path == path else None

    def page(self, document: GazetteDocument, headers: dict[str, str]) -> Reply:
        """The document's page, or 304 where the reader has this very one."""
        version = self.versions.get(document.number, 1)
        modified = datetime(document.day.year, document.day.month, document.day.day, 8, tzinfo=UTC)
        modified += timedelta(days=version - 1)
        etag = self._etag(document.number, version)
        known = (("ETag", etag), ("Last-Modified", format_datetime(modified, usegmt=True)))
        if etag in [tag.strip() for tag in headers.get("if-none-match", "").split(",")]:
            return Reply(304, headers=known)
        if document.path.endswith(".pdf"):
            lines = [document.title, *document.paragraphs, f"Verzija {version}."]
            return Reply(body=write_pdf(document.title, lines), content_type="application/pdf", headers=known)
        text = "".join(f"<p>{paragraph}</p>\n" for paragraph in (*document.paragraphs, f"Verzija {version}."))
        head = f'<meta property="article:published_time" content="{document.day.isoformat()}T08:00:00+00:00">'
        return html(document.title, f"<article><h1>{document.title}</h1>{text}</article>", head=head, headers=known)

    def _etag(self, number: int, version: int) -> str:
        name = f"{self._seed}/{number}/{version}".encode()
        return f'"{hashlib.sha1(name, usedforsecurity=False).hexdigest()[:16]}"'

    def _document(self, number: int, day_number: int) -> GazetteDocument:
        dice = random.Random(f"{self._seed}/{number}")  # noqa: S311 (made-up content)
        title = f"{dice.choice(_KINDS)} o {dice.choice(_TOPICS)} (broj {number})"
        paragraphs = tuple(" ".join(dice.choices(_SENTENCES, k=4)) for _ in range(dice.randint(3, 8)))
        return GazetteDocument(number, _FIRST_DAY + timedelta(days=day_number), title, paragraphs)
