"""The form of a file of categories, checked strictly: an unknown key or a wrong type names the place."""

from __future__ import annotations

import tomllib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from postroom.domain.errors import BadInput

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z_]{0,39}$")]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Domain = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$", max_length=253)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,100}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Condition(_Strict):
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
    accept: list[Condition] = Field(min_length=1)
    refuse: list[Condition] = []


class CategoryFile(_Strict):
    version: Literal[1]
    traits: dict[Name, list[Condition]] = {}
    categories: dict[Name, CategoryEntry] = Field(min_length=1)

    @field_validator("traits")
    @classmethod
    def _say_something(cls, traits: dict[str, list[Condition]]) -> dict[str, list[Condition]]:
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
