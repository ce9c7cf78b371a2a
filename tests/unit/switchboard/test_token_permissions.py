"""What a token may pass on: never more than it has, however it asks and through however many hands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import BadInput, NotAllowed
from postroom.domain.roles import PERMISSIONS, Caller, Permission, Role, all_permissions, default_permissions
from postroom.switchboard.tokens import MOST_DAYS, NewToken, TokenScope, granted

pytestmark = pytest.mark.req("HW-4")

NOW = datetime(2026, 6, 1, tzinfo=UTC)
mailboxes = st.sampled_from([None, "me@example.org", "you@example.org", "Me@Example.org "])
permissions = st.none() | st.lists(st.sampled_from(Permission), max_size=6)
asked = st.builds(
    NewToken,
    st.sampled_from(Role),
    st.just("a token"),
    st.none() | st.integers(-1, MOST_DAYS + 1),
    mailboxes,
    permissions,
)


def covers(one: TokenScope, other: TokenScope) -> bool:
    """Whether a holder of one can already do everything that the other allows, for at least as long."""
    return (
        other.role is one.role
        and other.permissions <= one.permissions
        and one.mailbox in (None, other.mailbox)
        and (one.expires_at is None or (other.expires_at is not None and other.expires_at <= one.expires_at))
    )


@st.composite
def makers(draw: st.DrawFn) -> TokenScope:
    role = draw(st.sampled_from(Role))
    held = draw(st.frozensets(st.sampled_from(sorted(all_permissions(role))), min_size=1))
    mailbox = draw(st.sampled_from([None, "me@example.org"]))
    ends = draw(st.none() | st.integers(1, 100_000).map(lambda minutes: NOW + timedelta(minutes=minutes)))
    return TokenScope(role, held, mailbox, ends)


@given(makers(), st.lists(asked, min_size=1, max_size=4))
def test_whatever_a_token_makes_it_covers_and_so_do_all_before_it(first: TokenScope, wishes: list[NewToken]) -> None:
    line = [first]
    for wish in wishes:
        try:
            line.append(granted(wish, line[-1], NOW))
        except (BadInput, NotAllowed):
            continue
    for made in line[1:]:
        assert all(covers(above, made) for above in line[: line.index(made)])
        assert made.permissions


@given(makers(), asked)
def test_a_token_that_may_not_make_tokens_makes_none(maker: TokenScope, wish: NewToken) -> None:
    without = TokenScope(maker.role, maker.permissions - {Permission.TOKENS}, maker.mailbox, maker.expires_at)
    with pytest.raises((NotAllowed, BadInput)):
        granted(wish, without, NOW)


@given(asked)
def test_the_owner_grants_what_is_asked_within_the_role(wish: NewToken) -> None:
    try:
        scope = granted(wish, None, NOW)
    except BadInput:
        return
    assert scope.permissions <= all_permissions(wish.role)
    assert scope.permissions == (
        default_permissions(wish.role) if wish.permissions is None else frozenset(wish.permissions)
    )


def test_approving_and_making_tokens_have_to_be_asked_for() -> None:
    assert all_permissions(Role.DASHBOARD) - default_permissions(Role.DASHBOARD) == {
        Permission.APPROVE,
        Permission.TOKENS,
    }
    assert all_permissions(Role.AGENT) - default_permissions(Role.AGENT) == {Permission.UNDO}
    assert default_permissions(Role.CONNECTOR) == all_permissions(Role.CONNECTOR)


def test_time_and_what_is_left_open_are_cut_to_the_makers() -> None:
    ends = NOW + timedelta(hours=3)
    maker = TokenScope(Role.DASHBOARD, frozenset({Permission.READ, Permission.TOKENS}), "me@example.org", ends)
    assert granted(NewToken(Role.DASHBOARD, "x"), maker, NOW) == TokenScope(
        Role.DASHBOARD, frozenset({Permission.READ}), "me@example.org", ends
    )
    assert granted(NewToken(Role.DASHBOARD, "x", 1), maker, NOW).expires_at == ends


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (NewToken(Role.AGENT, "x"), "no token of role agent"),
        (NewToken(Role.DASHBOARD, "x", permissions=[Permission.APPROVE]), "lacks approve"),
        (NewToken(Role.DASHBOARD, "x", endpoint_identity="you@example.org"), "for me@example.org only"),
    ],
)
def test_what_goes_beyond_is_refused_by_name(wish: NewToken, said: str) -> None:
    maker = TokenScope(Role.DASHBOARD, frozenset({Permission.READ, Permission.TOKENS}), "me@example.org")
    with pytest.raises(NotAllowed, match=said):
        granted(wish, maker, NOW)


def test_a_token_without_permissions_may_do_nothing_and_the_owner_everything() -> None:
    nothing = Caller(Role.DASHBOARD, "x", None, frozenset(), "01990000-0000-7000-8000-000000000000")
    assert not any(nothing.may(permission) for permission in Permission)
    assert Caller(Role.AGENT, "owner").permissions == frozenset(PERMISSIONS[Role.AGENT])
