"""What local triage may answer at all, which mail it never decides alone, and whether it may decide for an action by
itself: in shadow, earned, or lost. Pure.

A kind of mail is the domain that the receiving server authenticated, with an answer: who can write such mail is known,
and what the model says about it has been seen often enough.

Held-out comparisons alone move a right. In shadow each is a sure guess that was made before the model's answer was
learned; once earned they are the sure decisions that still went to the model, and are never learned from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from postroom.domain.actions import ActionType, Consequence, LabelParameters, WantedAction, consequence_of, parse_action
from postroom.mail.authentication import Authentication, authentication_of, receiving_results
from postroom.mail.headers import Headers
from postroom.mail.sender_kinds import Kind, kinds_of
from postroom.triage.choices import ToolOffer
from postroom.triage.decision import NOTHING
from postroom.triage.rules.facts import MessageFacts
from postroom.triage.signs import TextSigns

OTHER = "other"
"""What is never done alone: it sends, destroys, or takes more than a label to say."""
_NOT_LEARNED = frozenset({ActionType.SNOOZE})
_BULK = ("list-", "precedence", "auto-submitted", "feedback-id", "x-auto-response-suppress", "x-campaign")
_ROBOT = re.compile(
    r"(?:^|[._+-])(?:no-?reply|do-?not-?reply|donotreply|notifications?|newsletters?|news|alerts?|updates?|mailer|daemon"
    r"|bounces?|robot|rss|feeds?|info|billing|invoices?|orders?|receipts?|automated|system)",
)


def answer_of(wanted: WantedAction | None) -> str:
    """An action as a label of the learner: `none`, `archive`, `apply_label Receipts`."""
    if wanted is None:
        return NOTHING
    if wanted.type in _NOT_LEARNED or consequence_of(wanted) >= Consequence.DESTROYS:
        return OTHER
    if isinstance(wanted.parameters, LabelParameters):
        return f"{wanted.type} {wanted.parameters.label}"
    return str(wanted.type)


def wanted_of(answer: str) -> WantedAction | None:
    if answer == NOTHING:
        return None
    name, _, label = answer.partition(" ")
    return parse_action(name, {"label": label} if label else None)


def is_offered(answer: str, offer: ToolOffer) -> bool:
    """Whether the model could have answered this about the message, as the mailbox is now."""
    if answer == NOTHING:
        return True
    wanted = None if answer == OTHER else wanted_of(answer)
    if wanted is None or wanted.type not in offer.actions:
        return False
    choices = offer.choices(wanted.type)
    return choices is None or (isinstance(wanted.parameters, LabelParameters) and wanted.parameters.label in choices)


def hides(answer: str) -> bool:
    wanted = None if answer == OTHER else wanted_of(answer)
    return wanted is not None and consequence_of(wanted) > Consequence.MARKS


def vouched_domain(facts: MessageFacts, servers: Collection[str]) -> str | None:
    """The domain that the receiving server authenticated: that of the one sender, or of the mailing list that passed
    the message on; None where it vouches for neither."""
    text = facts.headers.get("authentication-results")
    if text is None or len(facts.senders) != 1:
        return None
    headers, domain = Headers((("Authentication-Results", text),)), facts.sender_domains[0]
    if authentication_of(headers, servers, domain) is Authentication.PASSED:
        return domain
    passed = [
        each.domain
        for each in receiving_results(headers, servers) or ()
        if each.method in ("dkim", "spf") and each.value == "pass" and "." in each.domain
    ]
    of_list = f".{facts.list_id}" if facts.list_id else ""
    return next((each for each in passed if of_list.endswith(f".{each}")), None)


def looks_personal(facts: MessageFacts) -> bool:
    """Nothing about it says bulk, robot or spam, and it went to one address: it may be from a person who is not known
    yet."""
    if any(name.startswith(_BULK) for name in facts.headers) or len(facts.recipients) > 1:
        return False
    if _ROBOT.search(facts.sender.rpartition("@")[0]):
        return False
    kinds = kinds_of(Headers(tuple(facts.headers.items())))
    return kinds.is_a(Kind.PERSON) or not kinds.is_a(Kind.SPAM_LIKE)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known about a message beside its facts."""

    vouched_for: str | None
    contacts: Sequence[str]
    answers_owner: bool
    signs: TextSigns
    is_personal: bool

    @property
    def is_teachable(self) -> bool:
        """Whether what is decided about it may become a label."""
        return self.vouched_for is not None and not self.signs.suspicion


def why_not_alone(about: Circumstances, answer: str, seen: int, least_seen: int) -> str | None:
    """Why local triage does not decide this, in words for people; None: nothing stands in its way."""
    reasons = (
        (answer == OTHER, "it would send, destroy or snooze something"),
        (about.vouched_for is None, "its sender is not authenticated"),
        (bool(about.signs.suspicion), "it may try to instruct the model"),
        (bool(about.contacts), "it is from a contact"),
        (about.answers_owner, "it answers mail of yours"),
        (about.signs.security is not None, "it looks like security mail"),
        (seen < least_seen, f"such mail of its domain was seen {seen} times, and {least_seen} are needed"),
        (about.is_personal and answer != OTHER and hides(answer), "it may be from a person, and would be hidden"),
    )
    return next((reason for applies, reason in reasons if applies), None)


_Z = 1.645
"""One-sided, 95 %."""
_MOST_WINDOW = 200
ALLOWED = 0.005
"""Share of decisions on which it may differ from the model; proof of more, by two differences at least, ends a
right."""
TO_EARN = 0.05
"""A right is earned when the true share is proven to lie below this: 52 comparisons without a difference do."""
TO_EARN_HIDING = 0.025
"""The same for an answer that hides mail: 106 comparisons."""


class RightState(StrEnum):
    SHADOW = "shadow"
    """It only compares itself with the model."""
    EARNED = "earned"
    LOST = "lost"
    """As in shadow, but it takes twice as much to earn it again."""


@dataclass(frozen=True, slots=True)
class Right:
    state: RightState = RightState.SHADOW
    recent: str = ""
    """The latest comparisons since it came into this state, oldest first: `=` agreed, `x` differed."""

    @property
    def may_decide(self) -> bool:
        return self.state is RightState.EARNED

    @property
    def compared(self) -> int:
        return len(self.recent)

    @property
    def differed(self) -> int:
        return self.recent.count("x")

    def after(self, agreed: bool, *, hides: bool) -> Right:
        """The right after one more held-out comparison; `hides` says whether the answer takes mail out of sight."""
        seen = replace(self, recent=(self.recent + ("=" if agreed else "x"))[-self._window :])
        match self.state:
            case RightState.EARNED:
                lost = seen.differed > 1 and lower_bound(seen.differed, seen.compared) > ALLOWED
                return Right(RightState.LOST) if lost else seen
            case RightState.SHADOW | RightState.LOST:
                once = TO_EARN_HIDING if hides else TO_EARN
                needed = once if self.state is RightState.SHADOW else once / 2
                earned = upper_bound(seen.differed, seen.compared) <= needed
                return Right(RightState.EARNED) if earned else seen

    @property
    def _window(self) -> int:
        return _MOST_WINDOW if self.state is RightState.EARNED else 5 * _MOST_WINDOW


def upper_bound(count: int, total: int) -> float:
    """The share may be as high as this (Wilson's interval)."""
    return _wilson(count, total, 1.0)


def lower_bound(count: int, total: int) -> float:
    return _wilson(count, total, -1.0)


def _wilson(count: int, total: int, sign: float) -> float:
    if total == 0:
        return 1.0 if sign > 0 else 0.0
    share, square = count / total, _Z * _Z
    middle = share + square / (2 * total)
    spread = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return max(0.0, (middle + sign * spread) / (1 + square / total))
