"""Templates into pages. Everything is escaped, and a name that a template does not get is an error, not a blank."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from postroom import __version__
from postroom.dashboard import assets, charts, wording
from postroom.dashboard.navigation import sections


def render(template: str, **values: Any) -> str:
    return _environment.get_template(template).render(values)


@pass_context
def _since(context: Context, moment: datetime | None) -> Markup:
    return wording.time_tag(moment, context["now"])


def _environment_of_pages() -> Environment:
    environment = Environment(
        loader=PackageLoader("postroom.dashboard.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "plain": wording.plain,
        "said": wording.said,
        "count": wording.count,
        "percent": wording.percent,
        "size": wording.size,
        "money": wording.money,
        "cents": wording.cents,
        "duration": wording.duration,
        "when": wording.when,
        "since": _since,
        "words": wording.words,
        "pretty": wording.pretty,
        "chart": charts.as_image,
    }
    environment.globals |= {
        "sections": sections,
        "asset": assets.address,
        "plural": wording.plural,
        "version": __version__,
    }
    return environment


_environment = _environment_of_pages()
