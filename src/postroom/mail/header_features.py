# ruff: noqa: RUF001 (other scripts are meant)
"""What the headers of a message tell about its kind, as names of features: for models that learn from them. Pure.

A feature is a short text: `s:invoice` is a word of the subject, `f:unsubscribe` a flag. Words of the subject, the
display name and the address also tell by their parts (`pieces`), so that a model understands words it has not seen.
No feature says when or to whom a message was sent.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import combinations, pairwise
from typing import Any

from postroom.mail.addresses import parse_addresses
from postroom.mail.authentication import is_refuted
from postroom.mail.concepts import concepts
from postroom.mail.headers import Headers
from postroom.mail.patterns import fold

READ = (
    "From",
    "Subject",
    "List-Unsubscribe",
    "List-ID",
    "List-Post",
    "Precedence",
    "Auto-Submitted",
    "In-Reply-To",
    "Authentication-Results",
)
"""The headers that anything here looks at."""


@cache
def _listed() -> dict[str, Any]:
    return tomllib.loads(files("postroom.mail").joinpath("senders.toml").read_text("utf-8"))


def listed_words(name: str) -> frozenset[str]:
    """A list of `senders.toml`."""
    return frozenset(_listed()[name].split())


FREEMAIL = listed_words("freemail")
GMAIL_FLAGS = {
    "SPAM": "spam",
    "CATEGORY_PROMOTIONS": "promotions",
    "CATEGORY_UPDATES": "updates",
    "CATEGORY_SOCIAL": "social",
    "CATEGORY_FORUMS": "forums",
    "CATEGORY_PERSONAL": "personal",
}
_SECOND_LEVEL = frozenset(re.findall(r"\w+", "co com org net ac gov gob edu or ne go gv ltd plc nhs gc gouv govt id"))
_WORD = re.compile(r"[^\W\d_]+")
_TOGETHER = re.compile(r"[぀-ヿ㐀-鿿豈-﫿฀-๿ᄀ-ᇿ]")
"""Scripts that write words without blanks, and Korean, whose words carry endings: read by their letters."""
_AMOUNT = re.compile(
    r"[€$£¥₹₺₽₴₩₪₫฿]\s?-?\d|\d\s?[€$£¥₹₺₽₴₩₪₫฿円元]|\b(?:eur|usd|gbp|chf|pln|zl|czk|kc|sek|nok|dkk|kr|huf|ft|ron|lei|"
    r"rsd|rs|inr|idr|rp|rm|sgd|aud|cad|nzd|zar|brl|r\$|mxn|ars|clp|cop|pen|try|tl|uah|rub|руб|грн|jpy|krw|twd|nt\$|"
    r"hkd|cny|vnd|thb|aed|sar|ngn|kes|ksh|php|euros?|dollars?)\s?\d|\d\s?(?:eur|usd|gbp|chf|pln|zl|czk|kc|sek|nok|dkk|"
    r"kr|huf|ft|ron|lei|rsd|tl|try|uah|грн|руб|rub|euros?|dollars?|원|บาท|vnd|ден)\b"
)
_FORMS_WITH_DIGITS = (
    ("amount", _AMOUNT),
    ("cents", re.compile(r"\d[.,]\d\d(?!\d)")),
    ("percent", re.compile(r"\d\s?[%٪]|%\s?\d")),
    ("time", re.compile(r"\b\d{1,2}[:h]\d\d|\b\d{1,2}\s?(?:am|pm|uhr|h)\b|\d時|\d点")),
    ("date", re.compile(r"\b\d{1,2}[./-]\d{1,2}(?:[./-]\d{2,4})?\b|\b\d{4}-\d\d-\d\d\b|\d月")),
    ("code", re.compile(r"\b(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{5,8}\b")),
    ("dashed", re.compile(r"\b[a-z]{1,5}-?\d{3}[-/\d]*\b|\b\d+-[a-z\d]+\b")),
    ("number", re.compile(r"\b\d{7,}\b")),
    ("digits4-6", re.compile(r"(?<![\d.,-])\d{4,6}(?![\d.,-])")),
    ("flight", re.compile(r"\b[a-z][a-z0-9] ?\d{3,4}\b")),
    ("hash", re.compile(r"#\s?\d")),
)
_SIGNS = {"?": "question", "？": "question", "!": "exclamation", "！": "exclamation", ":": "colon", "：": "colon"}
_SIGNS |= {"|": "bar", "｜": "bar", "→": "route", "–": "route", "—": "route", ">": "route", "-": "dash"}
_SIGNS |= dict.fromkeys('"“„«»「『', "quoted")
_SIGN = re.compile("[" + re.escape("".join(_SIGNS)) + "]")
_EMOJI = re.compile("[\U0001f300-\U0001faff☀-➿⭐⏰-⏳]")
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")
_REPLY = re.compile(
    r"^\s*(?:\[[^\]]*\]\s*)?(re|aw|antw|sv|vs|odp|res|rif|r|ynt|回复|答复|回覆|返信|fwd?|wg|tr|vb|pd|i|rv|doorst|fs|vl|转发|轉寄)"
    r"(?:\[\d+\])?\s?[:：]\s*",
)
_FORWARDS = frozenset(["fw", "fwd", "wg", "tr", "vb", "pd", "i", "rv", "doorst", "fs", "vl", "转发", "轉寄"])
_BULK = frozenset({"bulk", "list", "junk"})
_MOST_WORDS = 60


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What a model looks at, whether it was read from a message or from a line of training data."""

    name: str
    """The sender's display name."""
    address: str
    subject: str
    flags: frozenset[str]
    """`unsubscribe`, `list`, `bulk`, `auto`, `reply`, `known`, `failed`, and Gmail's labels (`GMAIL_FLAGS`)."""


def header_facts(headers: Headers, *, is_known: bool = False, labels: Collection[str] = ()) -> HeaderFacts:
    name, address = _first_sender(headers.get("From") or "")
    flags = [GMAIL_FLAGS[label] for label in labels if label in GMAIL_FLAGS]
    if is_known:
        flags.append("known")
    flags += _flags(headers, address)
    return HeaderFacts(name, address, headers.text("Subject") or "", frozenset(flags))


@lru_cache(8_192)
def _first_sender(value: str) -> tuple[str, str]:
    """The display name, and the address in its compared form."""
    found = parse_addresses(value)
    return (found[0].display_name, found[0].canonical) if found else ("", "")


def is_bulk(headers: Headers) -> bool:
    """Whether a `Precedence` header says that this went to many."""
    return any(
        word.strip() in _BULK
        for value in headers.get_all("Precedence")
        for word in value.lower().split(";")[0].split(",")
    )


def _flags(headers: Headers, address: str) -> Iterator[str]:
    if "List-Unsubscribe" in headers:
        yield "unsubscribe"
    if "List-ID" in headers:
        yield "list"
    if "List-Post" in headers:
        yield "discussion"
    if "Precedence" in headers and is_bulk(headers):
        yield "bulk"
    if (headers.get("Auto-Submitted") or "no").strip().lower()[:2] != "no":
        yield "auto"
    if "In-Reply-To" in headers:
        yield "reply"
    if is_refuted(headers, address.rpartition("@")[2]):
        yield "failed"


def features_of(facts: HeaderFacts) -> list[str]:
    """The names of all features that hold."""
    return [feature for group in feature_groups(facts) for feature in group]


def feature_groups(facts: HeaderFacts) -> tuple[Sequence[str], tuple[str, ...], tuple[str, ...]]:
    """Those of the subject, of the sender, and of flags; a sender's and the flags' come again and again."""
    return _of_subject(facts.subject), _of_sender(facts.name, facts.address), _of_flags(facts.flags, facts.address)


def pieces(feature: str) -> list[str]:
    """The parts of a word by which it may be understood: three to five letters in a row, with its ends marked. Nothing
    for features that are no words."""
    if feature[1] != ":" or feature[0] not in "snld" or (not feature.isascii() and _TOGETHER.search(feature)):
        return []
    kind, word = feature[:2], f"<{feature[2:]}>"
    long = len(word)
    found = [kind + word[at : at + size] for size in (3, 4, 5) for at in range(long - size + 1) if size < long]
    return list(dict.fromkeys(found))


def words_of(text: str) -> list[str]:
    """The words of a folded text; scripts without blanks between words give their letters, one to four in a row."""
    found: list[str] = []
    for word in _WORD.findall(text):
        if word.isascii() or not _TOGETHER.search(word):
            found.append(word)
        else:
            found += _letters(word)
    return found[:_MOST_WORDS]


def _letters(run: str) -> Iterable[str]:
    return [run[at : at + size] for size in (1, 2, 3, 4) for at in range(len(run) - size + 1)]


def _of_subject(subject: str) -> list[str]:
    folded = fold(subject)
    found: list[str] = []
    reply = _REPLY.match(folded)
    if reply:
        found.append("x:forward" if reply[1] in _FORWARDS else "x:reply")
        folded = folded[reply.end() :]
    if folded.startswith("["):
        found.append("x:tag")
    words = words_of(folded)
    found += ["s:" + word for word in dict.fromkeys(words)]
    if folded.isascii() or not _TOGETHER.search(folded):
        found += ["b:" + first + " " + second for first, second in pairwise(["^", *words, "$"])]
    meant = list(concepts().of(words, folded))[:8]
    found += ["t:" + concept for concept in meant]
    meant.sort()
    found += [f"p:{first}+{second}" for first, second in combinations(meant, 2)]
    found.append(f"x:length{min(len(words), 12) // 3}")
    found += ["x:" + _SIGNS[sign] for sign in dict.fromkeys(_SIGN.findall(folded))]
    if _DIGIT.search(folded):
        found += ["x:" + name for name, form in _FORMS_WITH_DIGITS if form.search(folded)]
    if not folded.isascii() and _EMOJI.search(folded):
        found.append("x:emoji")
    letter = _LETTER.search(subject)
    if letter is None:
        found.append("x:no letters")
    elif letter[0].islower():
        found.append("x:begins small")
    elif len(subject) > 8 and subject.isupper():
        found.append("x:capitals")
    return found


@lru_cache(16_384)
def _of_sender(name: str, address: str) -> tuple[str, ...]:
    """Mail comes from the same senders again and again, so this is remembered."""
    return tuple(_sender_features(name, address))


def _sender_features(name: str, address: str) -> Iterator[str]:
    local, _, domain = address.rpartition("@")
    own, below, country = split_domain(domain)
    words = [] if "@" in name else words_of(fold(name))
    for word in dict.fromkeys(words):
        yield f"n:{word}"
    for first, second in pairwise(words):
        yield f"m:{first} {second}"
    locals_ = _WORD.findall(fold(local))
    for word in dict.fromkeys(locals_):
        yield f"l:{word}"
    yield f"L:{fold(local)}"
    for word in dict.fromkeys(_WORD.findall(fold(own))):
        yield f"d:{word}"
    for part in below:
        yield f"u:{part}"
    yield f"c:{country}"
    yield f"x:levels{min(len(below), 3)}"
    said = [*words, *locals_, *(word for part in (own, *below) for word in _WORD.findall(fold(part)))]
    for concept in concepts().of(said, fold(name)):
        if concept != "chat":  # hello@ is no greeting
            yield f"T:{concept}"
    yield from _relations(name, words, local, locals_, own)
    yield from _of_trade(words, own)


def _of_trade(words: list[str], own: str) -> Iterator[str]:
    """Which well-known sender the name and the domain speak of, and whether both mean the same one."""
    known = trades()
    site = "".join(_WORD.findall(fold(own)))
    if own in FREEMAIL:
        site = ""
    elif site in known:
        yield f"k:{known[site]}"
    named = next((each for each in _called(words, site) if each in known), "")
    if named:
        yield f"K:{known[named]}"
        if named not in site and site not in known:
            yield "x:brand elsewhere" if site else "x:brand at freemail"
            return
    if site and site not in known:
        parts = _WORD.findall(fold(own))
        brand = next((part for part in parts if len(part) > 3 and part in known), named if named in site else "")
        if brand and len(brand) > 3:
            yield "x:brand and more"
            yield f"k:{known[brand]} and more"
            yield f"a:{site.replace(brand, '')}"


def _called(words: list[str], site: str) -> Iterator[str]:
    """How a sender calls itself: by all of its name, its beginning, or a word that stands in its domain too."""
    yield "".join(words)
    yield "".join(words[:2])
    yield from (word for at, word in enumerate(words) if len(word) > 3 and (at == 0 or word in site))


@cache
def trades() -> dict[str, str]:
    """The trade of each well-known sender, by the label of its domain."""
    listed = _listed()["trades"]
    letters = {name: fold(name) for text in listed.values() for name in text.split()}
    return {"".join(_WORD.findall(letters[name])): trade for trade, text in listed.items() for name in text.split()}


def _relations(name: str, words: list[str], local: str, locals_: list[str], own: str) -> Iterator[str]:
    joined, site, front = "".join(words), "".join(_WORD.findall(fold(own))), "".join(locals_)
    free = own in FREEMAIL
    if free:
        yield "x:freemail"
    if not name:
        yield "x:no name"
    brand = len(site) > 2 and (site in joined or (len(joined) > 2 and joined in site))
    if brand:
        yield "x:name is domain"
    if len(front) > 2 and site.startswith(front):
        yield "x:local is domain"
    named = sum(len(word) > 2 and word[:6] in front for word in words)
    yield f"x:name in local{min(named, 2)}{'f' if free else ''}"
    if _is_personal(name, words) and not brand:
        yield f"x:person{'f' if free else ''}{min(named, 2)}"
    if any(char.isdigit() for char in local):
        yield "x:digits in local"
    if "-" in own:
        yield f"x:hyphens{min(own.count('-'), 2)}"
    if any(char.isdigit() for char in own):
        yield "x:digits in domain"
    if len(own) > 14:
        yield "x:long domain"


def _is_personal(name: str, words: list[str]) -> bool:
    """As names of people are written: one to four words with capitals, nothing else."""
    shown = [word for word in name.replace(",", " ").split() if word.strip(".-'")]
    return len(words) >= 1 and 2 <= len(shown) <= 4 and all(word[0].isupper() and not word.isupper() for word in shown)


@lru_cache(16_384)
def _of_flags(flags: frozenset[str], address: str) -> tuple[str, ...]:
    found = [f"f:{flag}" for flag in sorted(flags)]
    own, _, _ = split_domain(address.rpartition("@")[2])
    from_where = "free" if own in FREEMAIL else "own"
    found.append(f"f:{'known' if 'known' in flags else 'new'} {from_where}")
    if flags.isdisjoint(("unsubscribe", "list", "bulk")):
        found.append(f"f:no list {'auto' if 'auto' in flags else from_where}")
        if "reply" in flags:
            found.append(f"f:reply {from_where}")
    return tuple(found)


@lru_cache(16_384)
def split_domain(domain: str) -> tuple[str, tuple[str, ...], str]:
    """The label that a sender registered, those below it, and what stands behind it: `mail.shop.co.uk` is `shop`,
    (`mail`,), `co.uk`."""
    labels = domain.split(".")
    last = 2 if len(labels) > 2 and labels[-2] in _SECOND_LEVEL else 1
    if len(labels) <= last:
        return domain, (), ""
    return labels[-last - 1], tuple(labels[: -last - 1]), ".".join(labels[-last:])
