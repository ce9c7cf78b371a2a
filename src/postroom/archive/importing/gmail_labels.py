"""Label names as Takeout and mail folders write them, turned into Gmail's label ids where they name the same thing.

Takeout writes system labels in the language of the account. Which language that is, is told by the word for read or
unread, which stands on every message: so a German's own label "Important" is not taken for Gmail's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from postroom.mail.encoded_words import decode_words

_ENGLISH = {
    "inbox": "INBOX",
    "sent": "SENT",
    "sent mail": "SENT",
    "draft": "DRAFT",
    "drafts": "DRAFT",
    "spam": "SPAM",
    "trash": "TRASH",
    "bin": "TRASH",
    "unread": "UNREAD",
    "starred": "STARRED",
    "important": "IMPORTANT",
    "chat": "CHAT",
    "category personal": "CATEGORY_PERSONAL",
    "category primary": "CATEGORY_PERSONAL",
    "category social": "CATEGORY_SOCIAL",
    "category promotions": "CATEGORY_PROMOTIONS",
    "category updates": "CATEGORY_UPDATES",
    "category forums": "CATEGORY_FORUMS",
    "opened": "",  # the absence of UNREAD
    "archived": "",  # the absence of INBOX
}
_GERMAN = {
    "posteingang": "INBOX",
    "gesendet": "SENT",
    "entwürfe": "DRAFT",
    "spam": "SPAM",
    "papierkorb": "TRASH",
    "ungelesen": "UNREAD",
    "markiert": "STARRED",
    "wichtig": "IMPORTANT",
    "geöffnet": "",
    "archiviert": "",
}
_FRENCH = {
    "boîte de réception": "INBOX",
    "messages envoyés": "SENT",
    "brouillons": "DRAFT",
    "spam": "SPAM",
    "corbeille": "TRASH",
    "non lus": "UNREAD",
    "favoris": "STARRED",
    "important": "IMPORTANT",
    "ouvert": "",
    "messages archivés": "",
}
_LANGUAGE_OF: Mapping[str, Mapping[str, str]] = {
    "geöffnet": _GERMAN,
    "ungelesen": _GERMAN,
    "ouvert": _FRENCH,
    "non lus": _FRENCH,
}
_FOLDERS = _ENGLISH | {"junk": "SPAM", "junk e-mail": "SPAM", "deleted items": "TRASH", "sent items": "SENT"}


def labels_of_header(value: str) -> frozenset[str]:
    """`X-Gmail-Labels`: names between commas, each maybe an encoded word, with quotes around those that hold commas."""
    return _named(_split(decode_words(value)))


def label_of_folder(name: str) -> str:
    return _FOLDERS.get(name.lower(), name)


def _named(names: list[str]) -> frozenset[str]:
    folded = [name.casefold() for name in names]
    known = next((_LANGUAGE_OF[name] for name in folded if name in _LANGUAGE_OF), _ENGLISH)
    return frozenset(_ids(known, names, folded))


def _ids(known: Mapping[str, str], names: list[str], folded: list[str]) -> Iterable[str]:
    for name, key in zip(names, folded, strict=True):
        label = known.get(key, name)
        if label:
            yield label


def _split(value: str) -> list[str]:
    """Between commas that stand outside of double quotes. A quote that is never closed is a plain character."""
    names: list[str] = []
    rest = " ".join(value.split())
    while rest:
        if rest.startswith('"') and (end := _closing_quote(rest)) > 0:
            name, rest = rest[1:end], rest[end + 1 :].partition(",")[2]
            name = name.replace('\\"', '"').replace('""', '"')
        else:
            name, _, rest = rest.partition(",")
        names.append(name.strip())
        rest = rest.lstrip()
    return [name for name in names if name]


def _closing_quote(text: str) -> int:
    """Where the quote that opens the text is closed: before a comma or the end."""
    position = text.find('"', 1)
    while position > 0 and text[position + 1 :].lstrip()[:1] not in ("", ","):
        position = text.find('"', position + 1)
    return position
