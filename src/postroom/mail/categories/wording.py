"""Features of headers (`mail/header_features.py`) in words for people: why a message was judged as it was. Pure."""

from __future__ import annotations

import re

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
