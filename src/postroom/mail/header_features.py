"""What the headers of a message tell about its kind, as names of features: for models that learn from them. Pure.

A feature is a short text: `s:invoice` is a word of the subject, `f:unsubscribe` a flag. Words of the subject, the
display name and the address also tell by their parts (`pieces`), so that a model understands words it has not seen;
words of 36 languages tell by what they mean, as `concepts.toml` has it: `Rechnung`, `factuur` and `invoice` are one
concept. No feature says when or to whom a message was sent.
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
from postroom.mail.headers import Headers
from postroom.mail.patterns import fold

_ANYWHERE = re.compile(r"[぀-ヿ㐀-鿿豈-﫿฀-๿ᄀ-ᇿऀ-ॿ]")
"""Scripts whose words are looked for anywhere in a text."""
_PART = 3
"""The fewest letters of a `*part`; by so many it is found."""

_REMEMBERED = 32_768

Meaning = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""A word's own concepts, and those that it has before words with these beginnings."""


class Concepts(dict[str, Meaning | None]):
    """What words mean, from `concepts.toml`; as a dictionary, what those mean that were looked up."""

    def __init__(self) -> None:
        self._begin: dict[str, list[str]] = {}
        self._whole: dict[str, list[str]] = {}
        self._within: list[tuple[str, str]] = []
        self._parts: dict[str, list[int]] = {}
        """Which places of `_within` begin with these letters."""
        self._second: dict[str, list[tuple[str, str]]] = {}
        self._anywhere: dict[str, list[tuple[str, str]]] = {}
        for group in tomllib.loads(files("postroom.mail").joinpath("concepts.toml").read_text("utf-8")).values():
            for concept, text in group.items():
                for entry in text.split():
                    self._add(fold(entry), concept)

    def _add(self, entry: str, concept: str) -> None:
        first, _, second = entry.partition("_")
        if _ANYWHERE.search(entry):
            self._anywhere.setdefault(entry[0], []).append((entry, concept))
        elif second:
            self._second.setdefault(first, []).append((second, concept))
        elif entry[0] == "*":
            if len(entry) <= _PART:
                raise ValueError(f"{entry} has fewer than {_PART} letters")
            self._parts.setdefault(entry[1 : 1 + _PART], []).append(len(self._within))
            self._within.append((entry[1:], concept))
        elif entry[0] == "=":
            self._whole.setdefault(entry[1:], []).append(concept)
        else:
            self._begin.setdefault(entry, []).append(concept)

    def __missing__(self, word: str) -> Meaning | None:
        """None for most words."""
        found = [*self._whole.get(word, ())]
        for end in range(3, len(word) + 1):
            found += self._begin.get(word[:end], ())
        places = {
            place
            for at in range(len(word) - _PART + 1)
            for place in self._parts.get(word[at : at + _PART], ())
            if word.startswith(self._within[place][0], at)
        }
        found += [self._within[place][1] for place in sorted(places)]
        second = tuple(self._second.get(word, ()))
        if len(self) >= _REMEMBERED:
            self.clear()
        meaning = self[word] = (tuple(found), second) if found or second else None
        return meaning

    def of(self, words: Sequence[str], text: str) -> dict[str, None]:
        """The concepts of a text that was folded and split, in the order of the words."""
        found: dict[str, None] = {}
        meanings = list(map(self.__getitem__, words))
        if any(meanings):
            for meaning, follower in zip(meanings, [*words[1:], ""], strict=True):
                if meaning is not None:
                    own, second = meaning
                    found |= dict.fromkeys(own)
                    found |= {concept: None for start, concept in second if follower.startswith(start)}
        if not text.isascii() and _ANYWHERE.search(text):
            found |= dict.fromkeys(self._within_text(text))
        return found

    def _within_text(self, text: str) -> Iterator[str]:
        for at, char in enumerate(text):
            for entry, concept in self._anywhere.get(char, ()):
                if text.startswith(entry, at):
                    yield concept


@cache
def concepts() -> Concepts:
    return Concepts()


# ruff: noqa: RUF001 (other scripts are meant)


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
_LETTERS_ALONE = "".join(chr(number) if chr(number).isalpha() else " " for number in range(128))
_TOGETHER = re.compile(r"[぀-ヿ㐀-鿿豈-﫿฀-๿ᄀ-ᇿ]")
"""Scripts that write words without blanks, and Korean, whose words carry endings: read by their letters."""
_BEFORE_AMOUNTS = (
    r"kc|kr|ft|rs|rp|rm|tl|r\$|zl",
    r"eur|usd|gbp|chf|pln|czk|sek|nok|dkk|huf|ron|lei|rsd|inr|idr|sgd|aud|cad|nzd|zar|brl|mxn|ars|clp|cop|pen|try|uah|rub|"
    r"руб|грн|jpy|krw|twd|nt\$|hkd|cny|vnd|thb|aed|sar|ngn|kes|ksh|php",
    *("euro", "euros", "dollar", "dollars"),
)
"""Currencies, those of one length together: Python looks back only by a fixed length."""
# A search is fast where a pattern begins with a character that must be there: each of these begins with a digit, where
# it can, and looks back. `\d(?<!\w\d)` is a digit at the beginning of a word.
_AMOUNT = re.compile(
    r"\d(?:\s?(?:[€$£¥₹₺₽₴₩₪₫฿円元]|(?:eur|usd|gbp|chf|pln|zl|czk|kc|sek|nok|dkk|kr|huf|ft|ron|lei|rsd|tl|try|uah|грн|руб|"
    r"rub|euros?|dollars?|원|บาท|vnd|ден)\b)|(?<=[€$£¥₹₺₽₴₩₪₫฿]\d)|(?<=[€$£¥₹₺₽₴₩₪₫฿][\s-]\d)|(?<=[€$£¥₹₺₽₴₩₪₫฿]\s-\d)|"
    r"(?<=[\w$\s]\d)(?<!\d\d)(?:"
    + "|".join(rf"(?<=\b(?:{words}){gap}\d)" for words in _BEFORE_AMOUNTS for gap in ("", r"\s"))
    + "))"
)
_MIXED = re.compile(r"\d(?:[a-z-]|(?<=[a-z-]\d))")
_FORMS_WITH_DIGITS = (
    ("amount", _AMOUNT),
    ("cents", re.compile(r"\d[.,]\d\d(?!\d)")),
    ("percent", re.compile(r"[%٪](?:(?<=\d.)|(?<=\d\s.)|(?<=%)\s?\d)")),
    ("time", re.compile(r"\d(?:(?<!\w\d)\d?(?:[:h]\d\d|\s?(?:am|pm|uhr|h)\b)|時|点)")),
    ("date", re.compile(r"\d(?:(?<!\w\d)(?:\d?[./-]\d{1,2}(?:[./-]\d{2,4})?|\d{3}-\d\d-\d\d)\b|月)")),
    ("code", re.compile(r"[a-z0-9](?<!\w.)(?:(?<=\d)(?=\d*[a-z])|(?<=[a-z])(?=[a-z]*\d))[a-z0-9]{4,7}\b")),
    ("dashed", re.compile(r"[a-z\d](?<!\w.)(?:(?<=\d)\d*-[a-z\d]+|(?<=[a-z])[a-z]{0,4}-?\d{3}[-/\d]*)\b")),
    ("number", re.compile(r"\d(?<!\w\d)\d{6,}\b")),
    ("digits4-6", re.compile(r"\d(?<![\d.,-]\d)\d{3,5}(?![\d.,-])")),
    ("flight", re.compile(r"\d(?:(?<=\b[a-z][a-z0-9]\d)|(?<=\b[a-z][a-z0-9] \d))\d{2,3}\b")),
    ("hash", re.compile(r"#\s?\d")),
)
_MOST_BEFORE_DIGIT = 8
"""No form begins earlier than so many characters before its first digit."""
_FORMS_UNMIXED = tuple(each for each in _FORMS_WITH_DIGITS if each[0] not in ("code", "dashed"))
"""What is left where no digit stands beside a letter or a dash."""
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
_LENGTHS = [f"x:length{words // 3}" for words in range(13)]
_OF_WORDS = frozenset(["s:", "n:", "l:", "d:"])


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
    names = headers.names
    if "list-unsubscribe" in names:
        yield "unsubscribe"
    if "list-id" in names:
        yield "list"
    if "list-post" in names:
        yield "discussion"
    if "precedence" in names and is_bulk(headers):
        yield "bulk"
    if "auto-submitted" in names and (headers.get("Auto-Submitted") or "no").strip().lower()[:2] != "no":
        yield "auto"
    if "in-reply-to" in names:
        yield "reply"
    if "authentication-results" in names and is_refuted(headers, address.rpartition("@")[2]):
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
    if feature[:2] not in _OF_WORDS or (not feature.isascii() and _TOGETHER.search(feature)):
        return []
    word = f"<{feature[2:]}>"
    long = len(word)
    found = [word[at : at + size] for size in (3, 4, 5) if size < long for at in range(long - size + 1)]
    return list(dict.fromkeys(found))


def words_of(text: str) -> list[str]:
    """The words of a folded text; scripts without blanks between words give their letters, one to four in a row."""
    if text.isascii():
        return text.translate(_LETTERS_ALONE).split()[:_MOST_WORDS]
    words = _WORD.findall(text)
    if not _TOGETHER.search(text):
        return words[:_MOST_WORDS]
    found: list[str] = []
    for word in words:
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
    found.append(_LENGTHS[min(len(words), 12)])
    found += ["x:" + _SIGNS[sign] for sign in dict.fromkeys(_SIGN.findall(folded))]
    if digit := _DIGIT.search(folded):
        first = max(0, digit.start() - _MOST_BEFORE_DIGIT)
        forms = _FORMS_WITH_DIGITS if _MIXED.search(folded, first) else _FORMS_UNMIXED
        found += ["x:" + name for name, form in forms if form.search(folded, first)]
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
