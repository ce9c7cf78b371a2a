"""The rooms of the dashboard, in the order in which people look for them. One that has no module yet is not shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class Section:
    key: str
    """Also the name of its module in `pages`."""
    path: str
    title: str


_ALL = (
    Section("overview", "/", "Overview"),
    Section("mail", "/mail", "Mail"),
    Section("approvals", "/approvals", "Approvals"),
    Section("actions", "/actions", "Actions"),
    Section("rules", "/rules", "Rules"),
    Section("backfill", "/backfill", "Backfill"),
    Section("connectors", "/connectors", "Connectors"),
    Section("filters", "/filters", "Filters"),
    Section("queue", "/queue", "Queue"),
    Section("web", "/web", "Web"),
    Section("archive", "/archive", "Archive"),
    Section("audit", "/audit", "Audit"),
    Section("settings", "/settings", "Settings"),
)


@cache
def sections() -> tuple[Section, ...]:
    return tuple(section for section in _ALL if find_spec(f"postroom.dashboard.pages.{section.key}") is not None)
