"""Who writes to one mailbox: the owner, the people the owner knows, strangers, and the companies of this seed."""

# Other alphabets are the point here, so letters that resemble Latin ones are no accident.
# ruff: noqa: RUF001

from __future__ import annotations

import re

from postroom.gmail.sim.mailbox import organisations
from postroom.gmail.sim.mailbox.dice import Dice
from postroom.gmail.sim.mailbox.languages import ENGLISH, OTHERS, Language
from postroom.gmail.sim.mailbox.party import Party

CONTACTS = 48
_SALT = 0x63617374
_CIRCLE_SALT = 0x63697263


# First names, family names, and how both are spelt in an address.
_NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "en": (
        ("Alice", "Ben", "Carol", "Daniel", "Ruth", "Tom", "Priya", "Sam"),
        ("Ashdown", "Birch", "Okoro", "Hale", "Reyes"),
    ),
    "de": (("Jürgen", "Käthe", "Lukas", "Sabine"), ("Müller", "Weiß", "Krämer", "Vogt")),
    "fr": (("Élise", "Benoît", "Chloé", "Mathieu"), ("Lefèvre", "Garçon", "Moreau")),
    "es": (("José", "Inés", "Lucía", "Íñigo"), ("Muñoz", "Peña", "García")),
    "pt": (("João", "Conceição", "Inês"), ("Araújo", "Simões")),
    "pl": (("Łukasz", "Małgorzata", "Zofia"), ("Wójcik", "Żak")),
    "cs": (("Jiří", "Zdeňka", "Tomáš"), ("Dvořák", "Růžička")),
    "ru": (("Анна", "Михаил", "Ольга"), ("Орлова", "Лебедев")),
    "uk": (("Олена", "Їван", "Тарас"), ("Шевчук", "Коваль")),
    "el": (("Ελένη", "Νίκος"), ("Παππά", "Δήμου")),
    "tr": (("Ayşe", "Çağlar", "Işıl"), ("Yılmaz", "Öztürk")),
    "ja": (("花子", "健一"), ("田中", "佐藤")),
    "zh": (("小明", "家文"), ("王", "李")),
    "zh-tw": (("美玲", "志明"), ("陳", "林")),
    "ko": (("민수", "지은"), ("김", "박")),
    "he": (("נועה", "דוד"), ("לוי", "כהן")),
    "ar": (("ليلى", "سامي"), ("حداد", "نصر")),
}
_HOSTS = (
    "freemail.example",
    "mail.example",
    "posteo.example",
    "fastpost.example",
    "work.example",
    "university.example",
    "xn--bcher-kva.example",
)


def _party(dice: Dice, language: Language, number: int) -> Party:
    firsts, lasts = _NAMES[language.code]
    first, last = dice.below(len(firsts)), dice.below(len(lasts))
    spelt = re.sub(r"[^a-z]", "", f"{firsts[first]}{lasts[last]}".lower().encode("ascii", "ignore").decode())
    local = f"{spelt or language.code.replace('-', '')}.{number}"
    return Party(f"{firsts[first]} {lasts[last]}", f"{local}@{dice.pick(_HOSTS)}", language)


class Cast:
    """The owner and the people around one mailbox."""

    def __init__(self, seed: int, email: str) -> None:
        words = re.findall(r"[a-z0-9]+", email.partition("@")[0].lower())
        self.owner = Party(" ".join(word.capitalize() for word in words), email)
        self._seed = seed
        dice = Dice(seed, _SALT)
        # The owner writes in English to half of them, and in every other language to somebody.
        languages = [ENGLISH if number % 2 else OTHERS[(number // 2) % len(OTHERS)] for number in range(CONTACTS)]
        contacts = [_party(dice, language, number) for number, language in enumerate(languages)]
        # A friend with a small shop writes from its address.
        contacts[11] = Party(contacts[11].name, f"hello@{contacts[11].address.partition('.')[0]}.example", ENGLISH)
        self.contacts = tuple(contacts)
        circle = Dice(seed, _CIRCLE_SALT)
        self.banks = tuple(circle.sample(organisations.BANKS, 6))
        self.shops = tuple(circle.sample(organisations.SHOPS, 8))
        self.travel = tuple(circle.sample(organisations.TRAVEL, 6))
        self.health = tuple(circle.sample(organisations.HEALTH, 6))
        self.newsletters = tuple(circle.sample(organisations.NEWSLETTERS, 6))
        self.promotions = tuple(circle.sample(organisations.PROMOTIONS, 6))

    def addressed(self, dice: Dice) -> Party:
        """The owner as companies write the address: now and then in another case, or without the name."""
        return self.owner if dice.chance(900) else Party("", self.owner.address.title())

    def contact(self, dice: Dice) -> Party:
        """Somebody the owner knows; few of them write most of the mail."""
        return self.contacts[min(dice.below(CONTACTS), dice.below(CONTACTS))]

    def stranger(self, dice: Dice) -> Party:
        language = ENGLISH if dice.chance(600) else dice.pick(OTHERS)
        return _party(dice, language, 100 + dice.below(900_000))
