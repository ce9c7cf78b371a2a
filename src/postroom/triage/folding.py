"""Text as a reader takes it, whatever letters it is dressed up in. Pure, and linear in the length of the text.

Characters that cannot be seen go; letters that only look different (wide, small capitals, in circles, with accents)
become plain ones; in a word that has Latin letters, so do those of other alphabets that look like them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

TAGS = re.compile("[\U000e0020-\U000e007f]+")
REVERSED = re.compile("\u202e([^\u202c\n]{1,500})")
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_APART = re.compile(r"(?<![\w'])(\w) (?=\w(?![\w']))")
_WORD = re.compile(r"[^\W_]+")
_NO_WORD = re.compile(r"[\W_]+")
_LATIN = re.compile("[a-z]")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_SMALL_CAPITALS = dict(zip("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘǫꞯʀꜱᴛᴜᴠᴡʏᴢıłøđ", "abcdefghijklmnopqqrstuvwyzilod", strict=True))
_EMBLEMS = {
    chr(first + number): letter
    for first in (0x1F150, 0x1F170, 0x1F1E6)  # white on black in circles and in squares, and the letters of flags
    for number, letter in enumerate(_ALPHABET)
}
_LETTERS = str.maketrans(_SMALL_CAPITALS | _EMBLEMS | {"æ": "ae", "œ": "oe"})
_LOOK_ALIKES = str.maketrans("аеорсухіјѕԁһгкмтвнԛԝαεορχυικντ", "aeopcyxijsdhrkmtbhqwaeopxyiknt")
_NUMBERS = str.maketrans("013457@$", "oieastas")


def visible(text: str) -> str:
    """The text with what is hidden in it shown, and without characters that take no room."""
    shown = TAGS.sub(lambda tags: "".join(chr(ord(char) - 0xE0000) for char in tags[0]), text)
    if shown.isascii():
        return shown
    shown = REVERSED.sub(lambda turned: turned[1][::-1], shown)
    shown = _UNSEEN.sub("", shown)
    return "".join(char for char in shown if unicodedata.category(char) != "Cf")


def folded(text: str) -> str:
    """In small plain letters without accents; letters that were set apart are joined."""
    lowered = text.casefold()
    if not lowered.isascii():
        parts = unicodedata.normalize("NFKD", lowered.translate(_LETTERS))
        # Once more: bold and other letters of mathematics are capitals until they were taken apart.
        lowered = "".join(char for char in parts if not unicodedata.combining(char)).casefold()
    return _APART.sub(r"\1", lowered)


def one_alphabet(text: str) -> str:
    """A folded text in which look-alikes within Latin words are Latin."""
    return text if text.isascii() else _WORD.sub(_latin, text)


def forms(text: str) -> Iterator[str]:
    """Every way in which a reader may take it: as it stands, in one alphabet, with letters for digits."""
    plain = folded(visible(text))
    yield plain
    yield one_alphabet(plain)
    if any(char.isdigit() for char in plain):
        yield _WORD.sub(_letters_for_digits, plain)


def words(text: str) -> str:
    """A folded text as words with one blank between each and around them all."""
    return f" {_NO_WORD.sub(' ', text).strip()} "


def _latin(word: re.Match[str]) -> str:
    return word[0].translate(_LOOK_ALIKES) if _LATIN.search(word[0]) else word[0]


def _letters_for_digits(word: re.Match[str]) -> str:
    return word[0].translate(_NUMBERS) if _LATIN.search(word[0]) else word[0]
