"""Numbers, times, money and foreign text formatted for people. Pure; templates use these functions as filters."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from markupsafe import Markup, escape

from postroom.domain.money import Micros, format_dollars, from_cents

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What has no shape of its own but changes that of its neighbours: direction marks let a name pose as another."""

_LONG_ADDRESS = re.compile(r"(?<!\S)(?=\S{20})[^\s@]{1,64}@")
_LABEL = re.compile(r'<(?:label for|legend id)="f-([^"]+)"[^<>]*>([^<]+)<')
_SPANS = ((86_400 * 365, "year"), (86_400 * 30, "month"), (86_400, "day"), (3_600, "hour"), (60, "minute"))
_NONE = "\N{EN DASH}"
_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Mac OS X", "macOS"),
    ("Windows", "Windows"),
    ("Linux", "Linux"),
)
"""The first that a browser names: most of them name others too."""
_CALLED = {"approved_pending": "waiting for approval", "auto_reply": "reply", "ok": "OK"}
"""Names of the code that would mislead."""


def plain(value: Any) -> Markup:
    """Text of other people: escaped, without marks that reach beyond it, and kept apart from what stands around it.

    A long address may break after its `@`, rather than in the middle of a name.
    """
    text = str(escape(clean(str(value))))
    if "@" in text:
        text = _LONG_ADDRESS.sub(r"\g<0><wbr>", text)
    return Markup(f"<bdi>{text}</bdi>")  # noqa: S704 - escaped; `format` takes ten times as long


def said(value: Any) -> Markup:
    """A message of ours, or with words of other people in it: as `plain`, with what stands in backticks as code."""
    parts = clean(str(value)).split("`")
    if len(parts) % 2 == 0:  # one of them has no partner
        return plain(value)
    forms = (Markup("{}"), Markup("<code>{}</code>"))
    return Markup("<bdi>{}</bdi>").format(
        Markup("").join(forms[place % 2].format(part) for place, part in enumerate(parts))
    )


def presentable(names: Iterable[str]) -> list[str]:
    """Those that can be offered as they are: without marks that reach beyond them."""
    return [name for name in names if clean(name) == name]


def clean(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def count(number: int | None) -> str:
    return _NONE if number is None else f"{number:,}"


def plural(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def percent(part: int | float, whole: int | float) -> str:
    if not whole:
        return _NONE
    share = 100 * part / whole
    if share in (0, 100) or 10 <= share <= 90:
        return f"{share:.0f}%"
    text = f"{share:.1f}"
    return f"{text if text in ('0.0', '100.0') else text.removesuffix('.0')}%"


def browser(user_agent: str) -> str:
    """`Firefox on Linux`; what no browser says is shown as it is."""
    name = next((name for sign, name in _BROWSERS if sign in user_agent), None)
    system = next((system for sign, system in _SYSTEMS if sign in user_agent), None)
    return f"{name} on {system}" if name and system else user_agent


def labels(page: str) -> defaultdict[str, Markup]:
    """What a rendered page calls its fields, by their names; empty for a field that it does not show."""
    found = _LABEL.findall(page)
    return defaultdict(Markup, {name: Markup(text.strip()) for name, text in found})  # noqa: S704 - of a rendered page


def size(number: int | None) -> str:
    """Bytes, in the unit that leaves a short number."""
    if number is None:
        return _NONE
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1_000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:,.1f} TB"


def money(micros: int | None) -> str:
    """Dollars with cents; a finer amount is shown to its last digit, so that nothing looks free that is not."""
    return _NONE if micros is None else format_dollars(Micros(micros))


def cents(number: int | None) -> str:
    return _NONE if number is None else format_dollars(from_cents(number))


def duration(value: timedelta | float | None) -> str:
    """The two largest units: `3 h 20 min`."""
    if value is None:
        return _NONE
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 1:
        return f"{max(seconds, 0) * 1_000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s"
    for span, unit, inner, inner_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= span:
            rest = int(seconds % span // inner)
            return f"{int(seconds // span)} {unit}" + (f" {rest} {inner_unit}" if rest else "")
    raise AssertionError("every span is covered above")


def ago(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "never"
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 10:
        return "just now"
    said = _span(abs(seconds))
    return f"{said} ago" if seconds > 0 else f"in {said}"


def _span(seconds: float) -> str:
    for span, unit in _SPANS:
        if seconds >= span:
            return plural(int(seconds // span), unit)
    return plural(int(seconds), "second")


def when(moment: datetime | date | None) -> str:
    """To the second, in UTC, and saying so."""
    if moment is None:
        return _NONE
    if isinstance(moment, datetime):
        return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return moment.isoformat()


def exact_time(moment: datetime | date | None) -> Markup:
    """To the second. The script shows it in the reader's time zone, with UTC as a tooltip."""
    if not isinstance(moment, datetime):
        return Markup(when(moment))  # noqa: S704 - a day or a dash
    stamp = moment.astimezone(UTC).isoformat(timespec="seconds")
    return Markup('<time class="exact" datetime="{0}" title="{1}">{1}</time>').format(stamp, when(moment))


def time_tag(moment: datetime | None, now: datetime) -> Markup:
    """`3 minutes ago`, with the exact time as a tooltip, which the script shows in the local time zone."""
    if moment is None:
        return Markup('<span class="quiet">{}</span>').format(_NONE)
    stamp = moment.astimezone(UTC).isoformat(timespec="seconds")
    return Markup(f'<time datetime="{stamp}" title="{when(moment)}">{ago(moment, now)}</time>')  # noqa: S704 - digits


def words(name: str) -> str:
    """A name of the code as a person says it: `high_priority` is High priority."""
    text = _CALLED.get(str(name), str(name)).replace("_", " ").replace(".", " ")
    return text[:1].upper() + text[1:]


def pretty(value: Any) -> str:
    """Stored JSON, to be shown as it is."""
    return clean(json.dumps(value, indent=2, ensure_ascii=False, default=_text))


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)
