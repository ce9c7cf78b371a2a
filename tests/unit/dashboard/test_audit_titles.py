"""What was done, in words."""

from __future__ import annotations

import pytest

from postroom.dashboard.audit import action_title


@pytest.mark.req("UX-3")
@pytest.mark.parametrize(
    ("action", "title"),
    [
        ("account.add", "Account added"),
        ("rule.apply_undo", "Rule application undone"),
        ("token.create", "Token created"),
        ("dashboard.login_failed", "Login failed"),
        ("backfill.start", "Backfill started"),
        ("something.unheard_of", "Something unheard of"),
    ],
)
def test_actions_are_said_as_people_say_them(action: str, title: str) -> None:
    assert action_title(action) == title
