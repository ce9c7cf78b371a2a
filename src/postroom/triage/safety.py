"""Whether an action has to wait for a person, and for what reasons: all of them, for the person who is asked. Pure.

What an action comes to decides, not what it is called: a label named TRASH is the trash.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from postroom.domain.actions import ActionType, Consequence, Wanted, consequence_of, meaning
from postroom.settings import SafetySettings
from postroom.triage.decision import Source
from postroom.triage.suspicion import NOTHING_SUSPICIOUS, Suspicion


def reasons_for(
    wanted: Wanted,
    source: Source,
    confidence: float | None,
    settings: SafetySettings,
    *,
    suspicion: Suspicion = NOTHING_SUSPICIOUS,
    model_asked: bool = False,
    unattended: bool = False,
    strangers: Sequence[str] = (),
    protected: Sequence[str] = (),
) -> tuple[str, ...]:
    """Why the action needs approval; nothing: it may be done.

    `unattended` frees a rule from the list of dangerous actions and from nothing else. `strangers` are those whom the
    action would reach and whom neither the owner's words nor the contacts name. `protected` says what about the message
    keeps a model from hiding it unasked.
    """
    kinds = {wanted.type, meaning(wanted)}
    reach = consequence_of(wanted)
    found = [*_by_lists(kinds, settings, spared=unattended and source is Source.RULE)]
    if source is Source.MODEL:
        found += _by_model(reach, confidence, settings, model_asked=model_asked)
        if suspicion and reach > Consequence.MARKS:
            found.append(f"the message may try to instruct the model: {suspicion}")
        if reach > Consequence.MARKS:
            found += [f"the model alone never hides this: {what}" for what in protected]
        if strangers:
            found.append(f"it would reach {', '.join(strangers)}, whom you have not named")
    return tuple(found)


def acts_alone(actions: Iterable[Wanted], settings: SafetySettings, *, unattended: bool) -> bool:
    """Whether a rule with these actions sends or destroys, or does what is listed as dangerous, without approval."""
    for wanted in actions:
        kinds = {wanted.type, meaning(wanted)}
        far = consequence_of(wanted) >= Consequence.DESTROYS or kinds & settings.dangerous
        if far and not reasons_for(wanted, Source.RULE, 1.0, settings, unattended=unattended):
            return True
    return False


def _by_lists(kinds: Iterable[ActionType], settings: SafetySettings, *, spared: bool) -> Iterable[str]:
    for kind in sorted(kinds):
        if kind in settings.always:
            yield f"{kind} always needs approval"
        if kind in settings.dangerous and not spared:
            yield f"{kind} is a dangerous action"


def _by_model(
    reach: Consequence, confidence: float | None, settings: SafetySettings, *, model_asked: bool
) -> Iterable[str]:
    least = least_confidence(reach, settings)
    sure = 0.0 if confidence is None or math.isnan(confidence) else confidence
    if sure < least:
        yield f"the model is only {sure:.0%} sure, and this needs {least:.0%}"
    if model_asked:
        yield "the model asks for approval"


def least_confidence(reach: Consequence, settings: SafetySettings) -> float:
    """The further an action reaches, the surer a model has to be; never less sure than for what reaches less far."""
    steps = {
        Consequence.MARKS: settings.min_confidence,
        Consequence.HIDES: settings.hiding_confidence,
        Consequence.DESTROYS: settings.destroying_confidence,
        Consequence.SPEAKS: settings.destroying_confidence,
    }
    return max(least for step, least in steps.items() if step <= reach)
