"""What the categories are: data in `categories.toml`, the owner's own definitions above it, and the owner's corrections
("this sender is finance") above both. A mistake in a file is refused with the place where it stands.

A category is selected in two steps: its query narrows what the source lists, then the headers decide. What the owner
wrote wins over what the model thinks; a message that fails authentication is in no category all the same.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from postroom.domain.errors import BadInput
from postroom.domain.validation import problem_text, shaped
from postroom.mail.categories.model import CLASSES, NONE, Judgement, forgery_of, judge_genuine, reasons
from postroom.mail.header_features import READ, HeaderFacts, header_facts
from postroom.mail.headers import Headers
from postroom.mail.patterns import any_of, any_words, fold
from postroom.mail.query import QueryError, parse

Name = Annotated[str, shaped(r"[a-z][a-z_]{0,39}", "is to be written with lower-case letters and underscores")]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Domain = Annotated[
    str, shaped(r"[a-z0-9-]+(\.[a-z0-9-]+)+", "is not a domain such as example.org"), Field(max_length=253)
]
HeaderName = Annotated[str, shaped(r"[a-z0-9-]{1,100}", "is not the name of a header in lower case")]


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
    """In the owner's file, what is left out stays as it is shipped."""

    title: str | None = Field(None, min_length=1, max_length=200)
    query: str | None = Field(None, max_length=20_000)
    years: int | None = Field(None, ge=1, le=100)
    skip: bool | None = None
    learned: bool | None = None
    """Whether the model decides where no condition does; only for the names that it knows."""
    accept: list[CategoryCondition] = []
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
        raise BadInput(place, problem_text(problem)) from None


FIELD = "target_categories"
LONGEST_QUERY = 2_000
_FIRST_DAY = date(1970, 1, 1)

Test = Callable[["CategoryFacts"], bool]


@dataclass(frozen=True, slots=True)
class CategoryFacts:
    """What the conditions look at. Texts are folded: lowercase, without accents."""

    headers: Headers
    header: HeaderFacts
    traits: dict[Callable[..., bool], bool] = field(default_factory=dict, repr=False, compare=False)
    """Those that were asked for, so that several categories look only once."""

    @property
    def address(self) -> str:
        return self.header.address

    @property
    def domain(self) -> str:
        return self.header.address.rpartition("@")[2]

    @property
    def sender(self) -> str:
        """The display name and the address as they are shown."""
        return fold(f"{self.header.name} {self.header.address}")

    @property
    def subject(self) -> str:
        return fold(self.header.subject)

    @property
    def is_known(self) -> bool:
        """The sender is one of the owner's contacts, or someone the owner has written to."""
        return "known" in self.header.flags


def facts_of(headers: Headers, *, is_known: bool = False, labels: Iterable[str] = ()) -> CategoryFacts:
    """`labels` are Gmail's ids of system labels."""
    return CategoryFacts(headers, header_facts(headers, is_known=is_known, labels=tuple(labels)))


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
    learned: bool
    accepts: Test
    refuses: Test

    def window(self, today: date) -> tuple[date, date]:
        """The days, both included, that a backfill covers by default."""
        return _FIRST_DAY if self.years is None else _years_before(today, self.years), today


def _years_before(day: date, years: int) -> date:
    try:
        return day.replace(year=day.year - years)
    except ValueError:  # the 29th of February
        return day.replace(year=day.year - years, day=28)


@dataclass(frozen=True, slots=True)
class CategoryVerdict:
    categories: tuple[str, ...]
    scores: Mapping[str, float]
    """What the model thinks of each class; empty where it was not asked."""
    why: tuple[str, ...]


class Categories:
    """The categories of an installation, by name, and which senders the owner put where."""

    def __init__(
        self,
        categories: Sequence[Category],
        headers_read: frozenset[str],
        corrections: Mapping[str, str] | None = None,
    ) -> None:
        self._by_name = {category.name: category for category in categories}
        self._defined = [each for each in categories if each.accepts is not never or each.refuses is not never]
        self._corrections = dict(corrections or {})
        self.headers_read = headers_read | {name.lower() for name in READ}
        """The names, in lowercase, of all headers that are looked at."""

    def corrected(self, corrections: Mapping[str, str]) -> Categories:
        """The same, with these corrections: an address or a domain, and its category or `none`."""
        return Categories(tuple(self._by_name.values()), self.headers_read, corrections)

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

    def first_days(
        self, names: Iterable[str], today: date, first: date | None = None, own: Mapping[str, date] | None = None
    ) -> tuple[date, dict[str, date]]:
        """The first day of a backfill of these, and those of the categories that begin later: each its `own`, else
        `first`, else as far back as the category goes by default."""
        wanted = self.require(names)
        days = {each.name: (own or {}).get(each.name) or first or each.window(today)[0] for each in wanted}
        early = min(days.values(), default=first or _FIRST_DAY)
        return early, {name: day for name, day in days.items() if day > early}

    def matching(self, facts: CategoryFacts, names: Iterable[str] | None = None) -> tuple[str, ...]:
        """Which of these categories (of all, by default) a message belongs to."""
        found = self._decided(facts)[0]
        if names is None:
            return found
        return tuple(each.name for each in map(self.get, names) if each.name in found)

    def verdict(self, facts: CategoryFacts) -> CategoryVerdict:
        """Where a message belongs, and why."""
        found, judgement, owner = self._decided(facts)
        why = [*owner, *(reasons(judgement) if judgement else ())]
        return CategoryVerdict(found, judgement.scores if judgement else {}, tuple(why))

    def _decided(self, facts: CategoryFacts) -> tuple[tuple[str, ...], Judgement | None, list[str]]:
        header = facts.header
        put, place = self._correction(header.address)
        forgery = forgery_of(header, trusted=put is not None)
        if forgery:
            return (), None, [forgery]
        if put is not None:
            return ((put,) if put in self._by_name else ()), None, [f"you put mail from {place} into {put}"]
        judgement = judge_genuine(header)
        best = self._by_name.get(judgement.category)
        found, why = [best.name] if best and best.learned else [], []
        for category in self._defined:
            if category.refuses(facts):
                if category.name in found:
                    found.remove(category.name)
                    why.append(f"your definition of {category.name} refuses it")
            elif category.accepts(facts):
                if category.name not in found:
                    found.append(category.name)
                why.append(f"your definition of {category.name} accepts it")
        return tuple(found), judgement, why

    def _correction(self, address: str) -> tuple[str | None, str]:
        """Where the owner put this sender: by its address, else by its domain or one above it."""
        if not self._corrections:
            return None, ""
        domain = address.rpartition("@")[2]
        for place in (address, *_above(domain)):
            if place in self._corrections:
                return self._corrections[place], place
        return None, ""

    def query(self, names: Iterable[str], first_days: Mapping[str, date] | None = None) -> str:
        """One query for the source that lists what any of these categories may accept, from its first day on; empty
        asks for everything."""
        queries = [_since(self.get(name).query, (first_days or {}).get(name)) for name in names]
        return queries[0] if len(queries) == 1 else " OR ".join(f"({query})" for query in queries)


def names_on(names: Iterable[str], first_days: Mapping[str, date], day: date) -> tuple[str, ...]:
    """Those of the categories that a backfill asks for on this day."""
    return tuple(name for name in names if first_days.get(name, day) <= day)


def _since(query: str, first: date | None) -> str:
    """A second more than wanted, because `after:` may leave out its own; the message's date decides."""
    if first is None:
        return query
    return f"({query}) after:{int(datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp()) - 1}"


def sender_place(text: str) -> str:
    """The address or domain that a correction is about, in the form in which it is compared."""
    place = text.strip().lower().removeprefix("@")
    domain = place.rpartition("@")[2]
    if not domain or "." not in domain or any(char.isspace() for char in place) or place.count("@") > 1:
        raise BadInput("sender", f"{text[:100]!r} is neither a mail address nor a domain")
    return place


@cache
def shipped() -> Categories:
    """The categories that come with Postroom."""
    return load(_shipped_text())


@cache
def _shipped_text() -> str:
    return files("postroom.mail.categories").joinpath("categories.toml").read_text("utf-8")


def load(text: str) -> Categories:
    """Read and check definitions; the first mistake is refused with the place where it stands."""
    return _compiled(read_file(text), read_file(text).categories)


def with_owner(text: str) -> Categories:
    """The shipped categories with the owner's definitions: conditions of the same name, and categories of their own."""
    base, own = read_file(_shipped_text()), read_file(text)
    merged = {name: _merged(entry, own.categories.get(name)) for name, entry in base.categories.items()}
    return _compiled(own, merged | {name: entry for name, entry in own.categories.items() if name not in merged})


def parse_categories(data: Mapping[str, Any]) -> Categories:
    """What the Switchboard sends to a connector, checked as if a stranger had written it."""
    definitions, corrections = data.get("definitions"), data.get("corrections")
    if not isinstance(definitions, str) or not isinstance(corrections, Mapping):
        raise BadInput("categories", "is an object with `definitions` and `corrections`")
    base = with_owner(definitions) if definitions else shipped()
    for sender, category in corrections.items():
        if category != NONE:
            base.get(str(category))
        sender_place(str(sender))
    return base.corrected({str(sender): str(category) for sender, category in corrections.items()})


def _merged(entry: CategoryEntry, own: CategoryEntry | None) -> CategoryEntry:
    return (
        entry
        if own is None
        else entry.model_copy(
            update=own.model_dump(exclude_unset=True, exclude={"accept", "refuse"})
            | {"accept": own.accept, "refuse": own.refuse}
        )
    )


def _compiled(file: CategoryFile, entries: Mapping[str, CategoryEntry]) -> Categories:
    compiler = _Compiler()
    for name, conditions in file.traits.items():
        compiler.add_trait(name, conditions)
    made = [_category(name, entry, compiler) for name, entry in entries.items()]
    return Categories(made, frozenset(compiler.headers_read))


def _category(name: str, entry: CategoryEntry, compiler: _Compiler) -> Category:
    place = f"categories.{name}"
    query = " ".join((entry.query or "").split())
    _check_query(query, f"{place}.query")
    if entry.title is None:
        raise BadInput(f"{place}.title", "is missing")
    if name == NONE:
        raise BadInput(place, "is the name for mail of no category")
    if entry.learned and name not in CLASSES:
        raise BadInput(f"{place}.learned", f"the model knows only {', '.join(CLASSES[:-1])}")
    if not entry.learned and not entry.accept:
        raise BadInput(f"{place}.accept", "is missing: without it, no mail would belong")
    accepts = compiler.any_of(entry.accept, f"{place}.accept")
    refuses = compiler.any_of(entry.refuse, f"{place}.refuse")
    return Category(name, entry.title, query, entry.years, bool(entry.skip), bool(entry.learned), accepts, refuses)


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
        self.headers_read: set[str] = set()

    def add_trait(self, name: str, conditions: Sequence[CategoryCondition]) -> None:
        self._traits[name] = _remembered(self.any_of(conditions, f"traits.{name}"))

    def any_of(self, conditions: Sequence[CategoryCondition], place: str) -> Test:
        tests = [self._all_of(condition, f"{place}[{number}]") for number, condition in enumerate(conditions)]
        return (lambda facts: any(test(facts) for test in tests)) if tests else never

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


def never(facts: CategoryFacts) -> bool:
    return False


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
    return any(each in wanted for each in _above(domain))


def _above(domain: str) -> Iterator[str]:
    """The domain and those above it."""
    while domain:
        yield domain
        domain = domain.partition(".")[2]
