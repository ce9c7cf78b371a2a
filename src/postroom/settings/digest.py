"""The settings of the digest."""

from __future__ import annotations

from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator

from postroom.domain.validation import shaped
from postroom.settings.groups import SettingsGroup

_TimeOfDay = Annotated[str, shaped(r"([01]\d|2[0-3]):[0-5]\d", "is not a time of day such as 07:00")]


class DigestSettings(SettingsGroup):
    """The digest by e-mail to yourself: what came, what was done, what waits, what was spent."""

    every: Literal["off", "daily", "weekly"] = Field(
        "off", description="`daily`: about the day before; `weekly`: about the week before, on Monday"
    )
    at: _TimeOfDay = Field("07:00", description="when it is sent, in `digest.zone`")
    zone: str | None = Field(
        None, description="the time zone of its days, such as Europe/Zagreb; unset: that of `backfill.day_zone`"
    )

    @field_validator("zone")
    @classmethod
    def _known_zone(cls, name: str | None) -> str | None:
        try:
            ZoneInfo(name or "UTC")
        except (KeyError, ValueError, OSError):
            raise ValueError(f"{name!r} is not a time zone; write for example Europe/Zagreb") from None
        return name or None
