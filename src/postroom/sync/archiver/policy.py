"""From settings and what was asked for to a policy; refuses whatever was not chosen on purpose."""

from __future__ import annotations

from datetime import datetime, timedelta

from postroom.archive.certificates import Action, Removal
from postroom.domain.errors import BadInput, NotAllowed
from postroom.settings import ArchiverSettings
from postroom.sync.archiver.selection import Policy


def policy_of(
    settings: ArchiverSettings, now: datetime, *, action: Action | None = None, label: str | None = None
) -> Policy:
    """`action` and `label` win over the settings; without either, nobody has said what removing should mean."""
    chosen = action or (None if settings.action is None else Action(settings.action))
    if chosen is None:
        raise BadInput("action", "say what removing means: --action label, trash or delete (or set archiver.action)")
    if label is not None and chosen is not Action.LABEL:
        raise BadInput("label", f"goes with --action label, not with {chosen}")
    removal = Removal(chosen, (label or settings.label) if chosen is Action.LABEL else "")
    kept = frozenset(name for each in settings.keep_labels.split(",") if (name := each.strip()))
    return Policy(removal, kept, now - timedelta(days=settings.keep_days))


def require_enabled(settings: ArchiverSettings, *, enabled_now: bool = False) -> None:
    if not (settings.enabled or enabled_now):
        raise NotAllowed(
            "The archiver is off, as it is by default. `postroom archive plan` shows what it would remove. Set "
            "archiver.enabled (POSTROOM_ARCHIVER__ENABLED=true), or give --enable for this run only."
        )
