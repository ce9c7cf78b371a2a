"""The form of the rule editor: from a rule to form fields, and back, with every mistake beside its field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from postroom.dashboard.forms import Form
from postroom.domain.actions import ActionType, ForwardParameters, ReplyParameters, SnoozeParameters, WantedAction
from postroom.domain.errors import BadInput
from postroom.triage.rules.conditions import parse_condition
from postroom.triage.rules.facts import MessageFacts
from postroom.triage.rules.files import parse_json
from postroom.triage.rules.rule import (
    DEFAULT_PRIORITY,
    MOST_ACTIONS,
    RuleDraft,
    ScopeKind,
    checked_scope,
    parse_actions,
    parse_fields,
    parse_name,
    parse_priority,
    short_form,
)
from postroom.triage.rules.trial import UNSAID
from postroom.triage.rules.wording import LEAVES, SEVERAL, SimpleCondition, simple_like, simple_of

T = TypeVar("T")

YES, NO = "yes", "no"
_FEWEST_ROWS = 3
_ROWS = range(1, MOST_ACTIONS + 1)
_NEEDS = {
    ActionType.APPLY_LABEL: "needs the name of a label",
    ActionType.REMOVE_LABEL: "needs the name of a label",
    ActionType.SNOOZE: "needs a duration, such as 3h or 2d, or a time with its zone",
    ActionType.FORWARD: "needs the address to forward to",
}
_NOT_SHOWN = frozenset({"cc", "subject", "body_html", "references", "attachments"})
_SINGLE = tuple(name for name in LEAVES if name not in SEVERAL and name != "attachment")


def blank() -> Form:
    return Form.filled(priority=DEFAULT_PRIORITY, whose_mail=ScopeKind.GLOBAL, enabled=YES)


def like(facts: MessageFacts) -> Form:
    """The editor for a rule about mail such as this message."""
    simple = simple_like(facts)
    name = f"Mail of {facts.list_id}" if simple.list_id else f"Mail from {facts.sender}"
    return Form({**blank().values, **Form.filled(name=name[:100], **_condition_fields(simple)).values})


def filled(draft: RuleDraft, stamp: str = "") -> Form:
    """The editor with a rule in it."""
    simple = simple_of(draft.condition)
    written = json.dumps(draft.condition, ensure_ascii=False, indent=2)
    asked = {"condition": written} if simple is None or not _fits_lines(simple) else _condition_fields(simple)
    return Form.filled(
        name=draft.name,
        whose_mail=draft.scope.kind,
        which=draft.scope.ref,
        priority=draft.priority,
        unattended=YES if draft.unattended else None,
        enabled=YES if draft.enabled else None,
        stamp=stamp,
        **asked,
        **_action_fields(draft.actions),
    )


def rows_of(form: Form) -> int:
    """How many rows for actions the editor shows: the used ones and at least one empty."""
    used = max((number for number in _ROWS if form[f"action_{number}"]), default=0)
    more = 2 if form["intent"] == "more" else 1
    return min(max(used + more, _FEWEST_ROWS), MOST_ACTIONS)


def read(form: Form, *, to_try: bool = False) -> tuple[RuleDraft | None, Form]:
    """The rule, or None and the form with its errors. To be tried, a rule needs neither a name nor actions."""
    reading = _FormReader(form)
    data = {
        "name": form["name"] if form["name"] or not to_try else "this rule",
        "scope": str(reading.of("which", lambda: checked_scope(form["whose_mail"], form["which"])) or "global"),
        "priority": reading.of("priority", lambda: parse_priority(form.number("priority"))),
        "condition": _condition(reading),
        "actions": list(UNSAID) if to_try and not has_actions(form) else _actions(reading),
        "unattended": form.checked("unattended"),
        "enabled": form.checked("enabled"),
    }
    reading.of("name", lambda: parse_name(data["name"]))
    if reading.form.errors:
        return None, reading.form
    return reading.of("condition", lambda: parse_fields(data)), reading.form


class _FormReader:
    """Collects the errors."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def of(self, field: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except BadInput as error:
            self.form = self.form.refused(BadInput(field, error.problem))
            return None


def _condition(reading: _FormReader) -> dict[str, Any] | None:
    form = reading.form
    given = _given(form)
    if form["condition"]:
        if given:
            both = BadInput("condition", "replaces the fields above; clear either it or them")
            reading.form = form.refused(both)
            return None
        return reading.of("condition", lambda: _written(form["condition"]))
    if not given:
        nothing = "or another of these fields is needed: without a condition the rule would apply to all mail"
        reading.form = form.refused(BadInput("sender", nothing))
        return None
    if form.checked("subdomains") and "domain" not in given:
        reading.form = form.refused(BadInput("domain", "is needed to include its subdomains"))
        return None
    condition = SimpleCondition(**given, subdomains=form.checked("subdomains")).condition()
    for name, leaf in LEAVES.items():
        if leaf in condition:
            reading.of(name, partial(parse_condition, {leaf: condition[leaf]}))
    return condition


def _given(form: Form) -> dict[str, Any]:
    """The simple fields that are filled in."""
    lines = {name: [line.strip() for line in form[name].splitlines() if line.strip()] for name in SEVERAL}
    found: dict[str, Any] = {name: values for name, values in lines.items() if values}
    found |= {name: form[name] for name in _SINGLE if form[name]}
    if form["attachment"]:
        found["attachment"] = form["attachment"] == YES
    return found


def _written(text: str) -> dict[str, Any]:
    data = parse_json(text, "the condition")
    try:
        parse_condition(data)
    except BadInput as error:
        place = error.field.removeprefix("condition").removeprefix(".")
        raise BadInput("condition", f"{place}: {error.problem}" if place else error.problem) from None
    condition: dict[str, Any] = data  # type: ignore[assignment]
    return condition


def has_actions(form: Form) -> bool:
    return any(form[f"action_{number}"] or form[f"with_{number}"] for number in _ROWS)


def _actions(reading: _FormReader) -> list[Any] | None:
    form = reading.form
    rows = [number for number in _ROWS if form[f"action_{number}"] or form[f"with_{number}"]]
    if not rows:
        reading.form = form.refused(BadInput("action_1", "is needed: choose at least one action"))
        return None
    wishes = [reading.of(_place(form, number), partial(_wish, form, number)) for number in rows]
    if any(wish is None for wish in wishes):
        return None
    try:
        parse_actions(wishes)
    except BadInput as error:
        found = re.search(r"\[(\d+)\]", error.field)
        row = rows[int(found[1])] if found else rows[0]
        reading.form = reading.form.refused(BadInput(f"action_{row}", re.sub(r" at \[\d+\]", "", error.problem)))
        return None
    return wishes


def _place(form: Form, number: int) -> str:
    """The field to blame if an action is refused: its parameter if it needs one, else the action."""
    kind = form[f"action_{number}"]
    if kind == ActionType.AUTO_REPLY and not form[f"with_{number}"]:
        return "reply"
    return f"with_{number}" if kind in _NEEDS or form[f"with_{number}"] else f"action_{number}"


def _wish(form: Form, number: int) -> Any:
    """One row as it is written in a file of rules, checked by itself."""
    kind, value = form[f"action_{number}"], form[f"with_{number}"]
    if not kind:
        raise BadInput("with", "is filled in, but no action is chosen")
    if kind in _NEEDS and not value:
        raise BadInput("with", _NEEDS[ActionType(kind)])
    if value and kind not in _NEEDS:
        raise BadInput("with", "must be empty for this action")
    written = _in_full(kind, value, form)
    parse_actions([written])
    return written


def _in_full(kind: str, value: str, form: Form) -> Any:
    if kind == ActionType.AUTO_REPLY:
        kept = _kept(form, "reply_more")
        if not form["reply"] and "body_html" not in kept:
            raise BadInput("reply", "is needed: the text to send")
        return {"type": kind, **kept} | ({"body": _lines(form["reply"])} if form["reply"] else {})
    if kind == ActionType.FORWARD:
        to = [part.strip() for part in value.split(",") if part.strip()]
        return {"type": kind, "to": to, **_kept(form, "note_more")} | (
            {"note": _lines(form["note"])} if form["note"] else {}
        )
    return f"{kind}={value}" if value else kind


def _kept(form: Form, field: str) -> dict[str, Any]:
    """Of a rule that sends mail, what the editor has no field for."""
    kept = parse_json(form[field], "the rest of the mail") if form[field] else {}
    if not isinstance(kept, dict) or not kept.keys() <= _NOT_SHOWN:
        raise BadInput(field, f"holds other things than {', '.join(sorted(_NOT_SHOWN))}")
    return kept


def _lines(text: str) -> str:
    """With plain line feeds: a browser sends CRLF."""
    return text.replace("\r\n", "\n")


def _fits_lines(simple: SimpleCondition) -> bool:
    """Whether the form can hold these values: not if one has several lines or surrounding space."""
    several = [value for name in SEVERAL for value in getattr(simple, name) or ()]
    every = [*several, *(value for name in _SINGLE if (value := getattr(simple, name)) is not None)]
    return all(value.splitlines() == [value.strip()] for value in every)


def _condition_fields(simple: SimpleCondition) -> Mapping[str, Any]:
    found: dict[str, Any] = {name: "\n".join(getattr(simple, name) or ()) or None for name in SEVERAL}
    found |= {name: getattr(simple, name) for name in _SINGLE}
    found["attachment"] = None if simple.attachment is None else YES if simple.attachment else NO
    found["subdomains"] = YES if simple.subdomains else None
    return found


def _rest(wanted: WantedAction) -> str | None:
    kept = {name: value for name, value in wanted.parameters_json().items() if name in _NOT_SHOWN}
    return json.dumps(kept, ensure_ascii=False, indent=2) if kept else None


def _action_fields(actions: tuple[WantedAction, ...]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for number, wanted in enumerate(actions, 1):
        found[f"action_{number}"] = str(wanted.type)
        match wanted.parameters:
            case ReplyParameters(body=body):
                found |= {"reply": body, "reply_more": _rest(wanted)}
            case ForwardParameters(to=to, note=note):
                found |= {f"with_{number}": ", ".join(to), "note": note, "note_more": _rest(wanted)}
            case SnoozeParameters(until=until) if until is not None:
                found[f"with_{number}"] = until.isoformat()
            case _:
                found[f"with_{number}"] = str(short_form(wanted)).partition("=")[2] or None
    return found
