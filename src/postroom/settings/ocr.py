"""The settings of reading words in pictures."""

from __future__ import annotations

from pydantic import Field

from postroom.settings.groups import SettingsGroup


class OcrSettings(SettingsGroup):
    """Words in attached pictures and scanned PDF files, with the `ocr` extra."""

    enabled: bool = Field(
        True, description="read them in the background, after all other attachments; without the extra, none is read"
    )
