"""Who writes to a mailbox: the owner, known people, strangers, companies and lists. None of them exists.

Each mailbox knows a few of each kind, drawn by its seed, so that what was learned from one says little about the
next. Some have telling names and some do not; some write from `no-reply`, some from a personal address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from postroom.sim.gmail.generated.languages import ENGLISH, OTHERS, Language
from postroom.sim.gmail.generated.seeded_random import SeededRandom


@dataclass(frozen=True, slots=True)
class Correspondent:
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


_BY_CODE = {language.code: language for language in (ENGLISH, *OTHERS)}


def _orgs(code: str, *entries: tuple[str, str]) -> tuple[Correspondent, ...]:
    return tuple(Correspondent(name, f"{address}.example", _BY_CODE[code]) for name, address in entries)


BANKS = (
    *_orgs(
        "en",
        ("Northgate Bank", "no-reply@northgate-bank"),
        ("Verda Banking", "alerts@verda"),
        ("Harbour Credit Union", "statements@harbour-cu"),
        ("Tallow & Reed", "noreply@tallowreed"),
        ("Quill", "hello@quillmoney"),
        ("Fenwick Building Society", "do-not-reply@fenwickbs"),
        ("Copperline Cards", "service@copperline"),
        ("Brightwater Pensions", "info@brightwater-pensions"),
        ("Revenue and Customs", "no.reply@revenue-office"),
        ("Payroll at Hexa Works", "payroll@hexaworks"),
        ("Appleyard Insurance", "premiums@appleyard-insurance"),
    ),
    *_orgs(
        "de",
        ("Sparkasse Lindental", "noreply@sparkasse-lindental"),
        ("Volksbank Auetal", "service@volksbank-auetal"),
        ("Nordlicht Versicherung", "kundenservice@nordlicht-versicherung"),
    ),
    *_orgs("fr", ("Banque du Lac", "ne-pas-repondre@banquedulac"), ("Mutuelle des Prés", "contact@mutuelledespres")),
    *_orgs(
        "es",
        ("Banco Sierra", "avisos@bancosierra"),
    ),
)
SHOPS = (
    *_orgs(
        "en",
        ("Tinker & Twine", "orders@tinkertwine"),
        ("Bookbarrow", "receipts@bookbarrow"),
        ("Pantry Box", "no-reply@pantrybox"),
        ("City Power", "billing@citypower"),
        ("Fibreline Internet", "invoices@fibreline"),
        ("Oakum Outdoors", "shop@oakumoutdoors"),
        ("Pixel & Plum", "store+orders@pixelplum"),
        ("Streamhaus", "account@streamhaus"),
        ("Ledgerly", "billing-eu@ledgerly"),
        ("Riverbend Water", "customerservice@riverbendwater"),
        ("Saddle Street Mobile", "noreply@saddlestreet"),
        ("Kiln Street Ceramics", "hello@kilnstreet"),
        ("Appstall", "do_not_reply@appstall"),
    ),
    *_orgs(
        "de",
        ("Cycle Depot", "rechnung@cycledepot"),
        ("Stadtwerke Auetal", "buchhaltung@stadtwerke-auetal"),
        ("Blumenpost", "bestellung@blumenpost"),
    ),
    *_orgs("fr", ("Maison Cassis", "commande@maisoncassis"), ("Énergie Vallée", "facturation@energievallee")),
    *_orgs("es", ("Librería Alameda", "pedidos@libreria-alameda"), ("Telenorte", "facturas@telenorte")),
)
TRAVEL = (
    *_orgs(
        "en",
        ("Meridian Air", "bookings@meridianair"),
        ("Railaway", "tickets@railaway"),
        ("Hotel Lantern", "reservations@hotel-lantern"),
        ("Ferryline", "no-reply@ferryline"),
        ("Kestrel Airways", "noreply@email.kestrelairways"),
        ("Wayfare", "itineraries@wayfare"),
        ("The Anchor Inn", "reception@anchor-inn"),
        ("Roamly", "no-reply@roamly"),
        ("Drumlin Car Hire", "rentals@drumlin"),
        ("Coastliner Coaches", "info@coastliner"),
    ),
    *_orgs("de", ("Bergbahn Reisen", "buchung@bergbahn-reisen"), ("Hotel Seeblick", "reservierung@hotel-seeblick")),
    *_orgs("fr", ("Voyages Mistral", "reservations@voyages-mistral"), ("Auberge du Pont", "contact@auberge-du-pont")),
    *_orgs(
        "es",
        ("Viajes Cometa", "reservas@viajescometa"),
    ),
)
HEALTH = (
    *_orgs(
        "en",
        ("Elm Street Surgery", "appointments@elmstreet-surgery"),
        ("Dr. Okafor's Practice", "reception@okafor-clinic"),
        ("Bright Dental", "reminders@bright-dental"),
        ("Lakeside Hospital", "no-reply@lakeside-hospital"),
        ("Corner Pharmacy", "prescriptions@corner-pharmacy"),
        ("Willow Physiotherapy", "hello@willowphysio"),
        ("Clearview Opticians", "noreply@clearview"),
        ("Marlow Diagnostics", "results@marlowdx"),
        ("Dr Ines Falk", "ines.falk@falk-dermatology"),
        ("MyCare Portal", "do-not-reply@mycareportal"),
    ),
    *_orgs(
        "de",
        ("Zahnarztpraxis Weber", "praxis@zahnarzt-weber"),
        ("Klinikum Auetal", "noreply@klinikum-auetal"),
        ("Rosen-Apotheke", "info@rosen-apotheke"),
    ),
    *_orgs("fr", ("Cabinet médical Arnaud", "rdv@cabinet-arnaud"), ("Laboratoire Sevrin", "resultats@labo-sevrin")),
    *_orgs(
        "es",
        ("Clínica Robledo", "citas@clinicarobledo"),
    ),
)
# Not about health, travel or money, whatever the words in the subject.
LOCALS = (
    (
        Correspondent("Scissors & Comb", "bookings@scissorsandcomb.example"),
        ("Your appointment on {d}", "See you on {d}"),
    ),
    (Correspondent("Trattoria Nonna", "reservations@trattorianonna.example"), ("Reservation for two confirmed",)),
    (
        Correspondent("Old Mill Theatre", "boxoffice@oldmilltheatre.example"),
        ("Your tickets for Saturday", "Seats for {d}"),
    ),
    (Correspondent("Paws Veterinary Clinic", "reminders@pawsvets.example"), ("Vaccination due for Biscuit",)),
    (Correspondent("Velvet Garage", "service@velvetgarage.example"), ("Your car is ready", "Service booked for {d}")),
    (Correspondent("Evening Classes", "courses@eveningclasses.example"), ("Course confirmation", "Room change on {d}")),
)
NEWSLETTERS = _orgs(
    "en",
    ("The Slow Garden", "letter@slowgarden"),
    ("Weekly Kernel", "editor@weeklykernel"),
    ("Harbour Gazette", "morning@harbourgazette"),
    ("Bread & Ink", "hello@breadandink"),
    ("Notes on Maps", "newsletter@notesonmaps"),
    ("Elm Street Surgery News", "news@elmstreet-surgery"),
    ("Money Matters by Northgate Bank", "insights@news.northgate-bank"),
    ("The Rail Traveller", "magazine@railtraveller"),
    ("Dr. Mabel's Kitchen", "mabel@drmabel"),
    ("Cold Water Club", "post@coldwater"),
    ("Fold", "fold@substance"),
    ("Lakeside Hospital Friends", "friends@lakeside-hospital"),
)
PROMOTIONS = (
    *_orgs(
        "en",
        ("Tinker & Twine", "deals@news.tinkertwine"),
        ("Shoe Meadow", "offers@shoemeadow"),
        ("Meridian Air Offers", "offers@mail.meridianair"),
        ("Northgate Bank", "marketing@news.northgate-bank"),
        ("Gadget Quay", "sale@gadgetquay"),
        ("Roamly", "hello@mail.roamly"),
        ("Kestrel Airways", "kestrel@email.kestrelairways"),
        ("Bright Dental", "smile@bright-dental"),
        ("Copperline Cards", "rewards@e.copperline"),
        ("Pantry Box", "chef@pantrybox"),
    ),
    *_orgs("de", ("Lampe & Licht", "angebote@lampelicht"), ("Bergbahn Reisen", "news@bergbahn-reisen")),
    *_orgs(
        "fr",
        ("Maison Cassis", "offres@maisoncassis"),
    ),
)
SOCIAL = _orgs(
    "en",
    ("Perch", "notify@perch-social"),
    ("Ringlet", "updates@ringlet"),
    ("Common Ground", "no-reply@commonground"),
)
NOTIFIERS = _orgs(
    "en",
    ("Forgeworks", "notifications@forgeworks"),
    ("Accounts at Keyhole", "security@keyhole"),
    ("Parcelway", "tracking@parcelway"),
    ("Uptime Owl", "alerts@uptimeowl"),
    ("City Library", "loans@city-library"),
)
# People who send bills: their addresses look like anyone's.
FREELANCERS = _orgs(
    "en",
    ("Mara Lind", "mara@studiolind"),
    ("Owen Pryce", "owen.pryce@pryce-joinery"),
    ("Judit Sas", "sas.judit@sasdesign"),
)
LISTS = (
    ("Allotment growers", "growers.lists.allotments.example"),
    ("tinylang-dev", "tinylang-dev.lists.tinylang.example"),
    ("Street residents", "residents.elmstreet.example"),
    ("Choir", "choir.lists.stmark.example"),
)


# Other alphabets are the point here, so letters that resemble Latin ones are no accident.
# ruff: noqa: RUF001


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


def _person(dice: SeededRandom, language: Language, number: int) -> Correspondent:
    firsts, lasts = _NAMES[language.code]
    first, last = dice.below(len(firsts)), dice.below(len(lasts))
    spelt = re.sub(r"[^a-z]", "", f"{firsts[first]}{lasts[last]}".lower().encode("ascii", "ignore").decode())
    local = f"{spelt or language.code.replace('-', '')}.{number}"
    return Correspondent(f"{firsts[first]} {lasts[last]}", f"{local}@{dice.pick(_HOSTS)}", language)


class Correspondents:
    """The owner and the people around one mailbox."""

    def __init__(self, seed: int, email: str) -> None:
        words = re.findall(r"[a-z0-9]+", email.partition("@")[0].lower())
        self.owner = Correspondent(" ".join(word.capitalize() for word in words), email)
        self._seed = seed
        dice = SeededRandom(seed, _SALT)
        # The owner writes in English to half of them, and in every other language to at least one.
        languages = [ENGLISH if number % 2 else OTHERS[(number // 2) % len(OTHERS)] for number in range(CONTACTS)]
        contacts = [_person(dice, language, number) for number, language in enumerate(languages)]
        # A friend with a small shop writes from its address.
        contacts[11] = Correspondent(
            contacts[11].name, f"hello@{contacts[11].address.partition('.')[0]}.example", ENGLISH
        )
        self.contacts = tuple(contacts)
        circle = SeededRandom(seed, _CIRCLE_SALT)
        self.banks = tuple(circle.sample(BANKS, 6))
        self.shops = tuple(circle.sample(SHOPS, 8))
        self.travel = tuple(circle.sample(TRAVEL, 6))
        self.health = tuple(circle.sample(HEALTH, 6))
        self.newsletters = tuple(circle.sample(NEWSLETTERS, 6))
        self.promotions = tuple(circle.sample(PROMOTIONS, 6))

    def addressed(self, dice: SeededRandom) -> Correspondent:
        """The owner as companies write the address: now and then in another case, or without the name."""
        return self.owner if dice.chance(900) else Correspondent("", self.owner.address.title())

    def contact(self, dice: SeededRandom) -> Correspondent:
        """A person the owner knows; few of them write most of the mail."""
        return self.contacts[min(dice.below(CONTACTS), dice.below(CONTACTS))]

    def stranger(self, dice: SeededRandom) -> Correspondent:
        language = ENGLISH if dice.chance(600) else dice.pick(OTHERS)
        return _person(dice, language, 100 + dice.below(900_000))
