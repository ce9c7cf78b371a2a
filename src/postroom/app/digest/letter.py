"""A digest in words: the lines of its e-mail, and the names that the page uses too. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from postroom.app.digest.counts import ActionCount, DigestCounts, NamedCount
from postroom.domain.actions import ActionType, Origin
from postroom.domain.money import Micros, format_dollars
from postroom.domain.terms import Tier
from postroom.mail.addresses import Address
from postroom.mail.composing import REPORT_HEADER, OutgoingMail

TIER_NAMES: Mapping[Tier, str] = {
    Tier.HIGH_PRIORITY: "High priority",
    Tier.INTERACTIVE: "Interactive",
    Tier.DEFAULT: "Default",
}
ORIGIN_NAMES: Mapping[Origin, str] = {
    Origin.RULE: "Rules",
    Origin.MODEL: "Model",
    Origin.PERSON: "You",
    Origin.UNDO: "Undo",
}
DONE: Mapping[ActionType, str] = {
    ActionType.ARCHIVE: "archived",
    ActionType.APPLY_LABEL: "labelled",
    ActionType.REMOVE_LABEL: "label removed",
    ActionType.MARK_READ: "marked as read",
    ActionType.MARK_UNREAD: "marked as unread",
    ActionType.STAR: "starred",
    ActionType.UNSTAR: "star removed",
    ActionType.TRASH: "moved to trash",
    ActionType.RESTORE: "restored from trash",
    ActionType.DELETE: "deleted",
    ActionType.SNOOZE: "snoozed",
    ActionType.FORWARD: "forwarded",
    ActionType.AUTO_REPLY: "replied to",
    ActionType.UNSUBSCRIBE: "unsubscribed from",
}
_UNDONE: Mapping[ActionType, str] = {
    ActionType.ARCHIVE: "moved back to the inbox",
    ActionType.APPLY_LABEL: "label taken back",
    ActionType.REMOVE_LABEL: "label put back",
    ActionType.MARK_READ: "marked as unread again",
    ActionType.MARK_UNREAD: "marked as read again",
    ActionType.STAR: "star taken back",
    ActionType.UNSTAR: "star put back",
    ActionType.TRASH: "taken back from the trash",
    ActionType.RESTORE: "moved back to the trash",
    ActionType.SNOOZE: "snooze taken back",
}
_LONGEST_NAME = 60


def category_name(name: str) -> str:
    """`finance` is Finance."""
    text = name.replace("_", " ")
    return f"{text[:1].upper()}{text[1:]}" if text else "Other mail"


def what_was_done(counted: ActionCount) -> str:
    done = DONE[counted.type]
    return done if counted.origin is not Origin.UNDO else _UNDONE.get(counted.type, f"undone: {done}")


def by_origin(done: Sequence[ActionCount]) -> dict[Origin, list[ActionCount]]:
    """Who did how much of what, in the order of `Origin`; without those who did nothing."""
    return {origin: mine for origin in Origin if (mine := [each for each in done if each.origin is origin])}


def digest_subject(counts: DigestCounts) -> str:
    waiting = counts.needs_approval + counts.needs_review
    asks = f", {waiting:,} {'needs' if waiting == 1 else 'need'} your attention" if waiting else ""
    return f"Postroom digest: {_plural(counts.received, 'message')}{asks} ({counts.period.title})"


def digest_text(counts: DigestCounts, address: str | None) -> str:
    """Plain text. `address` is where the dashboard is, if that is known."""
    parts = [*_sections(counts)]
    if address is not None:
        period = counts.period
        parts.append([f"More: {address}/digest?period={period.kind}&day={period.first}"])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def digest_mail(counts: DigestCounts, owner: str, mark: str, address: str | None) -> OutgoingMail:
    """From the owner to the owner. Marked as automatic, and as ours: nothing answers it, forwards it or judges it."""
    return OutgoingMail(
        from_=Address(owner),
        to=(Address(owner),),
        subject=digest_subject(counts),
        text=digest_text(counts, address),
        extra_headers=((REPORT_HEADER, mark),),
        auto_submitted="auto-generated",
    )


def _sections(counts: DigestCounts) -> Iterator[list[str]]:
    yield [counts.period.title]
    yield [f"{_plural(counts.received, 'message')} received", *_aligned(_tiers(counts))]
    if counts.received and counts.categories:
        yield ["By category", *_aligned([(category_name(each.name), each.count) for each in counts.categories])]
    if counts.senders:
        yield ["Top senders", *_aligned([(_line(each), each.count) for each in counts.senders])]
    if counts.recovered:
        yield [f"{_plural(counts.recovered, 'older message')} recovered"]
    yield [*_done_lines(counts)]
    yield [*_waiting_lines(counts)]
    yield [f"{_plural(counts.model_calls, 'model call')}, {format_dollars(Micros(counts.spent))} spent"]


def _tiers(counts: DigestCounts) -> list[tuple[str, int]]:
    return [(TIER_NAMES[tier], number) for tier, number in counts.tiers if number]


def _done_lines(counts: DigestCounts) -> Iterator[str]:
    total = sum(each.count for each in counts.done)
    yield f"{_plural(total, 'action')} done" if total else "No action taken"
    for origin, mine in by_origin(counts.done).items():
        yield f"  {ORIGIN_NAMES[origin]}: {', '.join(f'{each.count:,} {what_was_done(each)}' for each in mine)}"
    if counts.failed:
        yield f"  {_plural(counts.failed, 'action')} failed"


def _waiting_lines(counts: DigestCounts) -> Iterator[str]:
    for number, noun, what in (
        (counts.needs_approval, "action", "approval"),
        (counts.needs_review, "message", "review"),
    ):
        if number:
            yield f"{_plural(number, noun)} {'needs' if number == 1 else 'need'} {what}"
    if not counts.needs_approval + counts.needs_review:
        yield "Nothing needs approval or review"


def _aligned(rows: Sequence[tuple[str, int]]) -> list[str]:
    widest = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{widest}}  {number:>6,}" for name, number in rows]


def _line(sender: NamedCount) -> str:
    """An address that someone else chose, on one line."""
    return "".join(char if char.isprintable() else " " for char in sender.name)[:_LONGEST_NAME]


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"
