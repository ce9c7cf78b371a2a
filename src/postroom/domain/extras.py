"""The optional parts of an installation: what each brings, whether it is here, and the command that adds it.

Modules of an extra are imported where they are used, never at the top of a module that the base install loads.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec

from postroom.domain.errors import Fatal


class Extra(StrEnum):
    """As pip knows them: `pip install 'postroom[web]'`."""

    WEB = "web"
    MODELS = "models"
    POSTGRES = "postgres"
    MEANING = "meaning"
    OCR = "ocr"

    @property
    def command(self) -> str:
        return f"pip install 'postroom[{self}]'"


_BRINGS = {
    Extra.WEB: ("defusedxml", "lxml", "lxml_html_clean", "protego", "pypdf", "trafilatura", "w3lib"),
    Extra.MODELS: ("anthropic", "genai_prices", "openai", "pydantic_ai"),
    Extra.POSTGRES: ("greenlet", "psycopg"),
    Extra.OCR: ("PIL", "cv2", "numpy", "onnxruntime", "rapidocr"),
    Extra.MEANING: ("numpy", "tokenizers", "wordllama"),
}
"""The modules that Postroom imports of each; what they need themselves comes along."""


class ExtraMissing(Fatal):
    """A part of Postroom is not installed."""

    def __init__(self, extra: Extra, what: str) -> None:
        super().__init__(f"{what} needs the {extra} extra: {extra.command}")
        self.extra = extra


def is_installed(extra: Extra) -> bool:
    return all(find_spec(module) is not None for module in _BRINGS[extra])


def require(extra: Extra, what: str) -> None:
    """Raise ExtraMissing, which says what cannot be done and which command mends it."""
    if not is_installed(extra):
        raise ExtraMissing(extra, what)
