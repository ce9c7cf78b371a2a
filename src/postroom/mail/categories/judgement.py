"""Which class of mail a header belongs to, and why, in words for people: forgeries first, then the model. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from postroom.mail.categories.model import NONE, CategoryModel, Prediction, shipped_model
from postroom.mail.header_features import HeaderFacts, feature_groups
from postroom.mail.sender_kinds import imitated

_KINDS = {
    "s": 'the subject has "{}"',
    "b": 'the subject has "{}"',
    "n": 'the sender\'s name has "{}"',
    "m": 'the sender\'s name has "{}"',
    "l": 'the address has "{}"',
    "L": 'the address begins with "{}"',
    "d": 'the domain has "{}"',
    "u": 'the domain has "{}" before it',
    "a": 'the domain adds "{}" to a known name',
    "c": "the domain ends in .{}",
    "k": "the domain is that of a known sender: {}",
    "K": "the name is that of a known sender: {}",
    "t": "the subject is about: {}",
    "p": "the subject is about: {}",
    "T": "the sender's name or address is about: {}",
}
_TRADES = {"trip": "travel company", "care": "health care", "cause": "charity", "office": "tax or payroll office"}
_CONCEPTS = {
    "due": "what is due",
    "dues": "rent or fees",
    "policy": "insurance",
    "rail": "train, bus or ship",
    "stay": "a place to stay",
    "event": "an event or a table",
    "service_case": "a request to a service",
    "notice": "terms or registration",
    "machine": "machines or calendars",
    "social": "a social network",
    "lure": "a lure or threat",
    "chat": "talk among people",
    "digest": "news or tips",
    "specialty": "a field of medicine",
    "animal": "animals",
}
_FORMS = {
    "reply": "the subject is a reply",
    "forward": "the subject is a forward",
    "tag": "the subject begins with a tag in brackets",
    "question": "the subject asks a question",
    "exclamation": "the subject has an exclamation mark",
    "colon": "the subject has a colon",
    "bar": "the subject has a vertical bar",
    "route": "the subject has an arrow or a long dash",
    "dash": "the subject has a dash",
    "quoted": "the subject has words in quotation marks",
    "amount": "the subject has an amount of money",
    "cents": "the subject has a number with two decimals",
    "percent": "the subject has a percentage",
    "time": "the subject has a time of day",
    "date": "the subject has a date",
    "code": "the subject has a code of letters and digits",
    "dashed": "the subject has a reference number",
    "number": "the subject has a long number",
    "digits": "the subject has a number of four to six digits",
    "flight": "the subject has what looks like a flight number",
    "hash": "the subject has a number after #",
    "emoji": "the subject has an emoji",
    "no letters": "the subject has no letters",
    "begins small": "the subject begins with a small letter",
    "capitals": "the subject is in capitals",
    "length": "the length of the subject",
    "levels": "how many parts the domain has",
    "brand elsewhere": "the name is a known brand's, and the domain is not",
    "brand at freemail": "the name is a known brand's, and the address is at a free mail provider",
    "brand and more": "the domain adds something to a known brand's name",
    "freemail": "the address is at a free mail provider",
    "no name": "the sender gives no name",
    "name is domain": "the sender's name is its domain's",
    "local is domain": "the address repeats the name of its domain",
    "name in local": "how much of the sender's name is in the address",
    "person": "the sender's name looks like a person's",
    "digits in local": "the address has digits",
    "digits in domain": "the domain has digits",
    "hyphens": "the domain has hyphens",
    "long domain": "the domain is long",
}
_FLAGS = {
    "unsubscribe": "it can be unsubscribed from",
    "list": "it comes from a mailing list",
    "discussion": "it comes from a list that one can write to",
    "bulk": "it says that it went to many",
    "auto": "it says that a machine sent it",
    "reply": "it replies to a message",
    "known": "you know the sender",
    "new": "you do not know the sender",
    "failed": "the receiving server could not authenticate the sender",
    "no list": "it comes from no mailing list",
    "spam": "Gmail calls it spam",
    "promotions": "Gmail calls it a promotion",
    "updates": "Gmail calls it an update",
    "social": "Gmail calls it social",
    "forums": "Gmail calls it a forum's",
    "personal": "Gmail calls it personal",
}
_MEASURE = re.compile(r"f?[\d-]+f?$|f$")
"""Behind the name of a form: how much, or whether the provider is free."""
_FROM_WHERE = re.compile(r" (?:free|own|auto)$")


def in_words(feature: str) -> str:
    kind, _, rest = feature.partition(":")
    match kind:
        case "x":
            return _FORMS[rest] if rest in _FORMS else _FORMS[_MEASURE.sub("", rest)]
        case "f":
            return _FLAGS[_FROM_WHERE.sub("", rest)]
        case "t" | "p" | "T":
            rest = " and ".join(_CONCEPTS.get(each, each).replace("_", " ") for each in rest.split("+"))
        case "k" | "K":
            rest = _TRADES.get(rest, rest).replace("_", " ")
    return _KINDS[kind].format(rest.replace("^ ", "").replace(" $", ""))


@dataclass(frozen=True, slots=True)
class Judgement:
    category: str
    """One of the model's classes; `none` is one."""
    prediction: Prediction | None
    """None where the model was not asked."""
    forgery: str | None = None
    """Why it is taken for a forgery."""
    groups: Sequence[Sequence[str]] = field(default=(), repr=False)
    """The features it was judged by."""

    @property
    def scores(self) -> Mapping[str, float]:
        """How likely each class is; empty where the model was not asked."""
        return self.prediction.shares if self.prediction else {}


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
    return Judgement(NONE, None, forgery) if forgery else judge_genuine(facts, model)


def judge_genuine(facts: HeaderFacts, model: CategoryModel | None = None) -> Judgement:
    """What is no forgery."""
    if "spam" in facts.flags:
        return Judgement(NONE, None, "Gmail calls it spam")
    groups = feature_groups(facts)
    found = (model or shipped_model()).predict(groups)
    return Judgement(found.best, found, groups=groups)


def reasons(judgement: Judgement, model: CategoryModel | None = None) -> list[str]:
    """Why it was judged so, the strongest reason first."""
    if judgement.forgery:
        return [judgement.forgery]
    strong = (model or shipped_model()).reasons(
        [each for group in judgement.groups for each in group], judgement.category
    )
    share = judgement.scores[judgement.category]
    return [f"the headers look like {judgement.category} ({share:.0%})", *dict.fromkeys(map(in_words, strong))]
