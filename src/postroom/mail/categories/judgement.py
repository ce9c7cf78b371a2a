"""Which class of mail a header belongs to, and why, in words: forgeries first, then the model. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from postroom.mail.categories.model import NONE, CategoryModel, shipped_model
from postroom.mail.categories.wording import in_words
from postroom.mail.header_features import HeaderFacts, feature_groups
from postroom.mail.imitation import imitated


@dataclass(frozen=True, slots=True)
class Judgement:
    category: str
    """One of the model's classes; `none` is one."""
    scores: Mapping[str, float]
    """How likely each class is; empty where the model was not asked."""
    forgery: str | None = None
    """Why it is taken for a forgery."""
    groups: Sequence[Sequence[str]] = field(default=(), repr=False)
    """The features it was judged by."""


def forgery_of(facts: HeaderFacts, *, trusted: bool = False) -> str | None:
    """Why a message is not from whom it says; None where nothing speaks for that. `trusted`: the owner vouches for the
    sender's address, so that a likeness of names means nothing."""
    if "failed" in facts.flags:
        return "the receiving server could not authenticate the sender: SPF, DKIM or DMARC failed"
    if trusted or "known" in facts.flags:
        return None
    found = imitated(facts.name, facts.address)
    return f"the sender imitates {found}" if found else None


def judge(facts: HeaderFacts, model: CategoryModel | None = None, *, trusted: bool = False) -> Judgement:
    forgery = forgery_of(facts, trusted=trusted)
    if forgery:
        return Judgement(NONE, {}, forgery)
    if "spam" in facts.flags:
        return Judgement(NONE, {}, "Gmail calls it spam")
    groups = feature_groups(facts)
    found = (model or shipped_model()).predict(groups)
    return Judgement(found.best, found.shares, groups=groups)


def reasons(judgement: Judgement, model: CategoryModel | None = None) -> list[str]:
    """Why it was judged so, the strongest reason first."""
    if judgement.forgery:
        return [judgement.forgery]
    strong = (model or shipped_model()).reasons(
        [each for group in judgement.groups for each in group], judgement.category
    )
    share = judgement.scores[judgement.category]
    return [f"the headers look like {judgement.category} ({share:.0%})", *dict.fromkeys(map(in_words, strong))]
