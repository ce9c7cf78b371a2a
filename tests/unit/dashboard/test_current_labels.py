"""Labels as they are once what is under way is done. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from postroom.actions.lifecycle import Action
from postroom.dashboard.mail.current import label_place, labels_after, still_matches
from postroom.domain.actions import ActionStatus, ActionType, Origin

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def action(kind: str, origin: Origin = Origin.PERSON, **parameters: Any) -> Action:
    given: dict[str, Any] = dict.fromkeys(Action.__dataclass_fields__)
    given |= {"type": ActionType(kind), "parameters": parameters, "status": ActionStatus.QUEUED, "origin": origin}
    return Action(**given)


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ([action("archive")], ("UNREAD", "Work")),
        ([action("archive"), action("apply_label", Origin.UNDO, label="INBOX")], ("UNREAD", "Work", "INBOX")),
        ([action("mark_read"), action("star")], ("INBOX", "Work", "STARRED")),
        ([action("remove_label", label="work")], ("INBOX", "UNREAD")),
        ([action("trash")], ("UNREAD", "Work", "TRASH")),
        ([action("trash"), action("restore", Origin.UNDO)], ("UNREAD", "Work", "INBOX")),
        ([action("snooze", hours=1)], ("UNREAD", "Work")),
        ([action("snooze"), action("remove_label", Origin.UNDO, label="Snoozed")], ("UNREAD", "Work", "INBOX")),
        ([action("forward")], ("INBOX", "UNREAD", "Work")),
    ],
)
def test_changes_are_made_in_their_order(changes: list[Action], labels: tuple[str, ...]) -> None:
    assert labels_after(("INBOX", "UNREAD", "Work"), changes) == labels


@pytest.mark.parametrize(
    ("query", "labels", "matches"),
    [
        ("in:inbox", ("INBOX",), True),
        ("in:inbox", (), False),
        ("(invoice) in:inbox", ("UNREAD",), False),
        ("invoice", ("TRASH",), False),
        ("in:anywhere invoice", ("TRASH",), True),
        ("label:my-bills -is:unread", ("My Bills",), True),
        ("label:my-bills -is:unread", ("My Bills", "UNREAD"), False),
        ("", ("INBOX",), True),
    ],
)
def test_a_list_keeps_what_still_belongs_to_it(query: str, labels: tuple[str, ...], matches: bool) -> None:
    assert still_matches(query, labels, NOW) is matches


@pytest.mark.parametrize(
    ("query", "is_all"),
    [("in:inbox is:unread", True), ("label:work -in:trash", True), ("", True), ("in:inbox invoice", False)],
)
def test_whether_labels_alone_tell_what_a_query_finds(query: str, is_all: bool) -> None:
    assert label_place(query, NOW).is_all is is_all
