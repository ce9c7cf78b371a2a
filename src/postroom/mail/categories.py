"""The categories of mail that a backfill may ask for (BF-16): data in `categories.toml`, checked and evaluated here.
Pure.

A category is selected in two steps: its query narrows what the source lists, its rules decide on the headers. Both
come before any body is fetched or any model is asked. A mistake in the file is refused with the place where it stands.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from postroom.domain.errors import BadInput
from postroom.mail.addresses import parse_addresses
from postroom.mail.headers import Headers
from postroom.mail.patterns import any_of, any_words, fold
from postroom.mail.query import QueryError, parse

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z_]{0,39}$")]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Domain = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$", max_length=253)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,100}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CategoryCondition(_Strict):
    """Everything that is given must hold. Lists of patterns hold when one of them is found."""

    all_traits: list[Name] = Field([], alias="is")
    no_traits: list[Name] = Field([], alias="is_not")
    known: bool | None = None
    domains: list[Domain] = []
    """The sender's domain is one of these or below one."""
    address: list[Pattern] = []
    """Anywhere in the sender's address."""
    sender: list[Pattern] = []
    """Whole words of the sender's display name and address."""
    subject: list[Pattern] = []
    """Whole words of the subject."""
    headers: dict[HeaderName, list[Pattern]] = {}
    """Anywhere in one of the header's values; an empty list asks only that it is there."""
    absent: list[HeaderName] = []


class CategoryEntry(_Strict):
    title: str = Field(min_length=1, max_length=200)
    query: str = Field(max_length=20_000)
    years: int | None = Field(None, ge=1, le=100)
    skip: bool = False
    accept: list[CategoryCondition] = Field(min_length=1)
    refuse: list[CategoryCondition] = []


class CategoryFile(_Strict):
    version: Literal[1]
    traits: dict[Name, list[CategoryCondition]] = {}
    categories: dict[Name, CategoryEntry] = Field(min_length=1)

    @field_validator("traits")
    @classmethod
    def _say_something(cls, traits: dict[str, list[CategoryCondition]]) -> dict[str, list[CategoryCondition]]:
        for name, conditions in traits.items():
            if not conditions:
                raise ValueError(f"the trait {name} has no conditions")
        return traits


def read_file(text: str) -> CategoryFile:
    try:
        return CategoryFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BadInput("categories", f"is not valid TOML: {error}") from None
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in problem["loc"]) or "categories"
        raise BadInput(place, problem["msg"]) from None


FIELD = "target_categories"
LONGEST_QUERY = 2_000
_FIRST_DAY = date(1970, 1, 1)

# Only these headers are read, so a connector that fetches metadata can ask for just these.
HEADERS_READ = ("From", "Subject")

Test = Callable[["CategoryFacts"], bool]


@dataclass(frozen=True, slots=True)
class CategoryFacts:
    """What the rules look at. Texts are folded: lowercase, without accents."""

    headers: Headers
    address: str
    domain: str
    sender: str
    """The display name and the address as they are shown."""
    subject: str
    is_known: bool
    """The sender is one of the owner's contacts, or someone the owner has written to."""
    traits: dict[Callable[..., bool], bool] = field(default_factory=dict, repr=False, compare=False)
    """Those that were asked for, so that several categories look only once."""


def facts_of(headers: Headers, *, is_known: bool = False) -> CategoryFacts:
    senders = parse_addresses(*headers.get_all("From")[:1])
    first = senders[0] if senders else None
    return CategoryFacts(
        headers=headers,
        address=first.canonical if first else "",
        domain=first.domain if first else "",
        sender=fold(f"{first.display_name} {first.address}") if first else "",
        subject=fold(headers.text("Subject") or ""),
        is_known=is_known,
    )


@dataclass(frozen=True, slots=True)
class Category:
    name: str
    title: str
    query: str
    """In the source's search language: everything the rules may accept, and little else."""
    years: int | None
    """How far back a backfill goes by default; None is all there is."""
    skipped: bool
    """Not worth history: recognised, and left where it is."""
    _test: Test

    def matches(self, facts: CategoryFacts) -> bool:
        return self._test(facts)

    def window(self, today: date) -> tuple[date, date]:
        """The days, both included, that a backfill covers by default."""
        return _FIRST_DAY if self.years is None else _years_before(today, self.years), today


def _years_before(day: date, years: int) -> date:
    try:
        return day.replace(year=day.year - years)
    except ValueError:  # the 29th of February
        return day.replace(year=day.year - years, day=28)


class Categories:
    """The categories of an installation, by name."""

    def __init__(self, categories: Sequence[Category], headers_read: frozenset[str]) -> None:
        self._by_name = {category.name: category for category in categories}
        self.headers_read = headers_read
        """The names, in lowercase, of all headers that any rule looks at."""

    def __iter__(self) -> Iterator[Category]:
        return iter(self._by_name.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    @property
    def selectable(self) -> tuple[str, ...]:
        return tuple(category.name for category in self._by_name.values() if not category.skipped)

    def get(self, name: str) -> Category:
        found = self._by_name.get(name)
        if found is None:
            raise BadInput(FIELD, f"{name!r} is not a category; choose from {', '.join(self.selectable)}")
        return found

    def require(self, names: Iterable[str]) -> tuple[Category, ...]:
        """The categories that a backfill may ask for; refuses unknown, repeated and skipped ones."""
        found = tuple(self.get(name) for name in names)
        for category in found:
            if category.skipped:
                raise BadInput(FIELD, f"{category.name} are not backfilled; choose from {', '.join(self.selectable)}")
        if len(set(found)) != len(found):
            raise BadInput(FIELD, "a category is named twice")
        return found

    def window(self, names: Iterable[str], today: date) -> tuple[date, date]:
        """The days that a backfill of these covers by default: as far back as any of them goes."""
        return min((category.window(today)[0] for category in self.require(names)), default=_FIRST_DAY), today

    def matching(self, facts: CategoryFacts, names: Iterable[str] | None = None) -> tuple[str, ...]:
        """Which of these categories (of all, by default) a message belongs to."""
        wanted = self._by_name if names is None else names
        return tuple(name for name in wanted if self.get(name).matches(facts))

    def query(self, names: Iterable[str]) -> str:
        """One query for the source that lists what any of these categories may accept; empty asks for everything."""
        queries = [self.get(name).query for name in names]
        return queries[0] if len(queries) == 1 else " OR ".join(f"({query})" for query in queries)


def matches(category: Category, headers: Headers, *, is_known: bool = False) -> bool:
    return category.matches(facts_of(headers, is_known=is_known))


@cache
def shipped() -> Categories:
    """The categories that come with Postroom."""
    return load(files("postroom.mail").joinpath("categories.toml").read_text("utf-8"))


def load(text: str) -> Categories:
    """Read and check definitions; the first mistake is refused with the place where it stands."""
    file = read_file(text)
    compiler = _Compiler()
    for name, conditions in file.traits.items():
        compiler.add_trait(name, conditions)
    return Categories([_category(name, file, compiler) for name in file.categories], frozenset(compiler.headers_read))


def _category(name: str, file: CategoryFile, compiler: _Compiler) -> Category:
    entry = file.categories[name]
    place = f"categories.{name}"
    query = " ".join(entry.query.split())
    _check_query(query, f"{place}.query")
    accepts = compiler.any_of(entry.accept, f"{place}.accept")
    refuses = compiler.any_of(entry.refuse, f"{place}.refuse")
    return Category(
        name, entry.title, query, entry.years, entry.skip, lambda facts: accepts(facts) and not refuses(facts)
    )


def _check_query(query: str, place: str) -> None:
    if len(query) > LONGEST_QUERY:
        raise BadInput(place, f"has {len(query)} characters; the most is {LONGEST_QUERY}")
    try:
        parse(query, now=0, strict=True)
    except QueryError as error:
        raise BadInput(place, error.problem) from None


class _Compiler:
    """Turns conditions into tests. A trait may rest on those above it, so no trait can rest on itself."""

    def __init__(self) -> None:
        self._traits: dict[str, Test] = {}
        self.headers_read = {name.lower() for name in HEADERS_READ}

    def add_trait(self, name: str, conditions: Sequence[CategoryCondition]) -> None:
        self._traits[name] = _remembered(self.any_of(conditions, f"traits.{name}"))

    def any_of(self, conditions: Sequence[CategoryCondition], place: str) -> Test:
        tests = [self._all_of(condition, f"{place}[{number}]") for number, condition in enumerate(conditions)]
        return lambda facts: any(test(facts) for test in tests)

    def _all_of(self, condition: CategoryCondition, place: str) -> Test:
        tests = [*self._of_the_sender(condition, place), *self._of_headers(condition, place)]
        tests += [self._trait(name, place) for name in condition.all_traits]
        tests += [_negated(self._trait(name, place)) for name in condition.no_traits]
        if not tests:
            raise BadInput(place, "has no condition, so it would hold for all mail")
        return lambda facts: all(test(facts) for test in tests)

    def _of_the_sender(self, condition: CategoryCondition, place: str) -> list[Test]:
        tests: list[Test] = []
        if condition.known is not None:
            wanted = condition.known
            tests.append(lambda facts: facts.is_known is wanted)
        if condition.domains:
            domains = frozenset(condition.domains)
            tests.append(lambda facts: _is_below(facts.domain, domains))
        if condition.address:
            address = any_of(condition.address, f"{place}.address")
            tests.append(lambda facts: address.found_in(facts.address))
        if condition.sender:
            sender = any_words(condition.sender, f"{place}.sender")
            tests.append(lambda facts: sender.found_in(facts.sender))
        return tests

    def _of_headers(self, condition: CategoryCondition, place: str) -> list[Test]:
        tests: list[Test] = []
        if condition.subject:
            subject = any_words(condition.subject, f"{place}.subject")
            tests.append(lambda facts: subject.found_in(facts.subject))
        for name, patterns in condition.headers.items():
            self.headers_read.add(name)
            tests.append(_header_test(name, patterns, f"{place}.headers.{name}"))
        for name in condition.absent:
            self.headers_read.add(name)
            tests.append(_absence_test(name))
        return tests

    def _trait(self, name: str, place: str) -> Test:
        if name not in self._traits:
            raise BadInput(place, f"{name!r} is not a trait; traits must stand above their first use")
        return self._traits[name]


def _remembered(test: Test) -> Test:
    def recall(facts: CategoryFacts) -> bool:
        known = facts.traits.get(test)
        if known is None:
            known = facts.traits[test] = test(facts)
        return known

    return recall


def _negated(test: Test) -> Test:
    return lambda facts: not test(facts)


def _header_test(name: str, patterns: Sequence[str], place: str) -> Test:
    if not patterns:
        return lambda facts: name in facts.headers
    pattern = any_of(patterns, place)
    return lambda facts: any(pattern.found_in(fold(value)) for value in facts.headers.get_all(name))


def _absence_test(name: str) -> Test:
    return lambda facts: name not in facts.headers


def _is_below(domain: str, wanted: frozenset[str]) -> bool:
    """The domain itself or one above it is wanted."""
    while domain:
        if domain in wanted:
            return True
        domain = domain.partition(".")[2]
    return False
