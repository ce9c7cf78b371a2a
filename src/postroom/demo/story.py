"""The order of the story: what each step is called, where it can be seen in the dashboard, and what does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from postroom.demo.scene import Scene
from postroom.demo.steps.archiving import archive_the_mailbox
from postroom.demo.steps.deciding import approve_what_waits, rules_and_model, undo_an_action
from postroom.demo.steps.following import follow_a_web_source
from postroom.demo.steps.morning import a_burst_in_the_morning
from postroom.demo.steps.recovering import recover_old_mail
from postroom.domain.extras import Extra, ExtraMissing, is_installed


class Outcome(Protocol):
    @property
    def lines(self) -> tuple[str, ...]:
        """What happened, for people."""


@dataclass(frozen=True)
class Step:
    title: str
    says: str
    path: str
    """Of the page that shows it."""
    run: Callable[[Scene], Awaitable[Outcome]]
    needs: Extra | None = None
    """Without it the step is named and skipped."""

    @property
    def skipped(self) -> str | None:
        """Why it cannot be taken here, with the command that mends it."""
        if self.needs is None or is_installed(self.needs):
            return None
        return ExtraMissing(self.needs, "skipped: this step").message


STORY = (
    Step("Ten years of mail", "A mailbox is added and comes into the archive.", "/archive", archive_the_mailbox),
    Step("Eight in the morning", "Twenty letters arrive at once.", "/queue", a_burst_in_the_morning),
    Step("Rules and a model", "Five letters; three rules; a model for the rest.", "/mail", rules_and_model),
    Step("A question", "What could do harm waits for a person.", "/approvals", approve_what_waits),
    Step("An undo", "What was done can be taken back.", "/mail", undo_an_action),
    Step(
        "Old mail, under a budget",
        "Told before what it costs; never more.",
        "/backfill",
        recover_old_mail,
        Extra.MODELS,
    ),
    Step("A web source", "A site that publishes things worth keeping.", "/web", follow_a_web_source, Extra.WEB),
)
