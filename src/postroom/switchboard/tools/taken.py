"""Arguments that several tools take, each with its bounds."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from postroom.domain.envelope import Identity, Name

MOST_IDS = 500


def _written_date(value: object) -> object:
    if isinstance(value, str) and len(value) == 10:
        return value
    if isinstance(value, date):
        return value
    raise PydanticCustomError("day", "must be a day such as 2026-01-31")


def _sane_year(value: date) -> date:
    if not 1970 <= value.year <= 9000:
        raise PydanticCustomError("day", "lies outside of the years 1970 to 9000")
    return value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise PydanticCustomError("printable", "holds characters that cannot be printed")
    return value


Day = Annotated[date, BeforeValidator(_written_date, json_schema_input_type=str), AfterValidator(_sane_year)]
GmailId = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9A-Za-z_-]{1,64}$")]
GmailIds = Annotated[list[GmailId], Field(max_length=MOST_IDS)]
Label = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=250), AfterValidator(_printable)]
Labels = Annotated[list[Label], Field(max_length=1_000)]
Short = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=200), AfterValidator(_printable)]
MessageId = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=998), AfterValidator(_printable)]
HeaderName = Annotated[str, StringConstraints(strict=True, pattern=r"^[!-9;-~]{1,100}$")]
HistoryId = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9]{1,64}$")]
Cursor = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=200), AfterValidator(_printable)]
ConnectorType = Name
EndpointIdentity = Annotated[Identity, Field(description="the mailbox, by its address")]
