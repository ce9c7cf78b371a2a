"""The companies, practices and lists that write to a mailbox's owner. None of them exists.

Each mailbox knows a few of each kind, drawn by its seed, so that what was learned from one says little about the next.
Some have telling names and some do not; some write from `no-reply`, some from an address that could be a person's.
"""

from __future__ import annotations

from postroom.gmail.sim.mailbox.languages import ENGLISH, OTHERS
from postroom.gmail.sim.mailbox.party import Party

_BY_CODE = {language.code: language for language in (ENGLISH, *OTHERS)}


def _orgs(code: str, *entries: tuple[str, str]) -> tuple[Party, ...]:
    return tuple(Party(name, f"{address}.example", _BY_CODE[code]) for name, address in entries)


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
    (Party("Scissors & Comb", "bookings@scissorsandcomb.example"), ("Your appointment on {d}", "See you on {d}")),
    (Party("Trattoria Nonna", "reservations@trattorianonna.example"), ("Reservation for two confirmed",)),
    (Party("Old Mill Theatre", "boxoffice@oldmilltheatre.example"), ("Your tickets for Saturday", "Seats for {d}")),
    (Party("Paws Veterinary Clinic", "reminders@pawsvets.example"), ("Vaccination due for Biscuit",)),
    (Party("Velvet Garage", "service@velvetgarage.example"), ("Your car is ready", "Service booked for {d}")),
    (Party("Evening Classes", "courses@eveningclasses.example"), ("Course confirmation", "Room change on {d}")),
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
# People who send bills: their addresses look like anybody's.
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
