"""Who writes: the owner, the people the owner knows, strangers, and the companies and lists. None of them exists."""

# Other alphabets are the point here, so letters that resemble Latin ones are no accident.
# ruff: noqa: RUF001

from __future__ import annotations

import re
from dataclasses import dataclass

from postroom.gmail.sim.mailbox.dice import Dice
from postroom.gmail.sim.mailbox.languages import ENGLISH, OTHERS, Language

CONTACTS = 48
_SALT = 0x63617374


@dataclass(frozen=True, slots=True)
class Party:
    """A sender or recipient."""

    name: str
    address: str
    language: Language = ENGLISH

    @property
    def header(self) -> str:
        return f"{self.name} <{self.address}>" if self.name else self.address

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]


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
        self.contacts = tuple(_party(dice, language, number) for number, language in enumerate(languages))

    def addressed(self, dice: Dice) -> Party:
        """The owner as companies write the address: now and then in another case, or without the name."""
        return self.owner if dice.chance(900) else Party("", self.owner.address.title())

    def contact(self, dice: Dice) -> Party:
        """Somebody the owner knows; few of them write most of the mail."""
        return self.contacts[min(dice.below(CONTACTS), dice.below(CONTACTS))]

    def stranger(self, dice: Dice) -> Party:
        language = ENGLISH if dice.chance(600) else dice.pick(OTHERS)
        return _party(dice, language, 100 + dice.below(900_000))


BANKS = (
    Party("Northgate Bank", "no-reply@northgate-bank.example"),
    Party("Verda Banking", "alerts@verda.example"),
    Party("Sparkasse Lindental", "noreply@sparkasse-lindental.example"),
    Party("Harbour Credit Union", "statements@harbour-cu.example"),
)
SHOPS = (
    Party("Tinker & Twine", "orders@tinkertwine.example"),
    Party("Bookbarrow", "receipts@bookbarrow.example"),
    Party("Pantry Box", "no-reply@pantrybox.example"),
    Party("Cycle Depot", "rechnung@cycledepot.example"),
    Party("City Power", "billing@citypower.example"),
    Party("Fibreline Internet", "invoices@fibreline.example"),
    Party("Appleyard Insurance", "premiums@appleyard-insurance.example"),
)
TRAVEL = (
    Party("Meridian Air", "bookings@meridianair.example"),
    Party("Railaway", "tickets@railaway.example"),
    Party("Hotel Lantern", "reservations@hotel-lantern.example"),
    Party("Ferryline", "no-reply@ferryline.example"),
)
HEALTH = (
    Party("Elm Street Surgery", "appointments@elmstreet-surgery.example"),
    Party("Dr. Okafor's Practice", "reception@okafor-clinic.example"),
    Party("Bright Dental", "reminders@bright-dental.example"),
    Party("Lakeside Hospital", "no-reply@lakeside-hospital.example"),
    Party("Corner Pharmacy", "prescriptions@corner-pharmacy.example"),
)
NEWSLETTERS = (
    Party("The Slow Garden", "letter@slowgarden.example"),
    Party("Weekly Kernel", "editor@weeklykernel.example"),
    Party("Harbour Gazette", "morning@harbourgazette.example"),
    Party("Bread & Ink", "hello@breadandink.example"),
    Party("Notes on Maps", "newsletter@notesonmaps.example"),
    Party("Elm Street Surgery News", "news@elmstreet-surgery.example"),
)
PROMOTIONS = (
    Party("Tinker & Twine", "deals@news.tinkertwine.example"),
    Party("Shoe Meadow", "offers@shoemeadow.example"),
    Party("Meridian Air Offers", "offers@mail.meridianair.example"),
    Party("Northgate Bank", "marketing@news.northgate-bank.example"),
    Party("Lampe & Licht", "angebote@lampelicht.example"),
    Party("Gadget Quay", "sale@gadgetquay.example"),
)
SOCIAL = (
    Party("Perch", "notify@perch-social.example"),
    Party("Ringlet", "updates@ringlet.example"),
    Party("Common Ground", "no-reply@commonground.example"),
)
NOTIFIERS = (
    Party("Forgeworks", "notifications@forgeworks.example"),
    Party("Accounts at Keyhole", "security@keyhole.example"),
    Party("Parcelway", "tracking@parcelway.example"),
    Party("Uptime Owl", "alerts@uptimeowl.example"),
    Party("City Library", "loans@city-library.example"),
)
LISTS = (
    ("Allotment growers", "growers.lists.allotments.example"),
    ("tinylang-dev", "tinylang-dev.lists.tinylang.example"),
    ("Street residents", "residents.elmstreet.example"),
    ("Choir", "choir.lists.stmark.example"),
)
