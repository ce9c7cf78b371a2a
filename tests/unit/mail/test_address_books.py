"""Address books as programs export them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.errors import BadInput
from postroom.mail.address_books import AddressBook, BookEntry, ContactKind, read_csv, read_vcards

steady = settings(deadline=None, derandomize=True, max_examples=150)


def entries(book: AddressBook) -> list[tuple[str, str]]:
    return [(entry.address, entry.name) for entry in book.entries]


def vcards(*cards: str) -> AddressBook:
    return read_vcards("".join(f"BEGIN:VCARD\r\n{card}\r\nEND:VCARD\r\n" for card in cards).encode())


@pytest.mark.req("PQ-4")
def test_a_card_of_version_3_with_folds_groups_and_several_addresses() -> None:
    book = vcards(
        "VERSION:3.0\r\nFN:Anna Lind\\, M.A.\r\nN:Lind;Anna;;;\r\nEMAIL;TYPE=INTERNET,HOME:Anna@Example.ORG\r\n"
        "item1.EMAIL;type=WORK:anna.lind@very-long-domain-name\r\n -that-was-folded.example\r\nitem1.X-ABLabel:Work"
    )
    assert entries(book) == [
        ("anna@example.org", "Anna Lind, M.A."),
        ("anna.lind@very-long-domain-name-that-was-folded.example", "Anna Lind, M.A."),
    ]
    assert book.problems == ()


@pytest.mark.req("PQ-4")
def test_a_card_of_version_4_with_parameters_in_quotes_and_a_kind() -> None:
    book = vcards(
        'VERSION:4.0\r\nKIND:org\r\nFN:Bücher; & Söhne\r\nEMAIL;PREF=1;X-NOTE="a:b;c":info@bücher.example',
        "VERSION:4.0\r\nKIND:group\r\nFN:Choir\r\nEMAIL:choir@example.org",
    )
    assert book.entries == (BookEntry("info@xn--bcher-kva.example", "Bücher; & Söhne", ContactKind.ORGANISATION),)


@pytest.mark.req("PQ-4")
def test_a_card_of_an_old_phone_in_quoted_printable() -> None:
    book = vcards(
        "VERSION:2.1\r\nN;CHARSET=UTF-8;ENCODING=QUOTED-PRINTABLE:M=C3=BCller;J=C3=BC=\r\nrgen;;;\r\n"
        "EMAIL;INTERNET:juergen@example.org",
        "VERSION:2.1\r\nFN;CHARSET=ISO-8859-1;ENCODING=QUOTED-PRINTABLE:Ren=E9\r\nEMAIL:rene@example.org",
    )
    assert entries(book) == [("juergen@example.org", "Jürgen Müller"), ("rene@example.org", "René")]


def test_cards_without_a_usable_address_are_named_and_left_out() -> None:
    book = vcards("FN:Nobody", "FN:Broken\r\nEMAIL:not an address", "FN:Good\r\nEMAIL:good@example.org\r\nEMAIL:bad@")
    assert entries(book) == [("good@example.org", "Good")]
    assert book.problems == (
        "card 1: has no address",
        "card 2: not every address can be read",
        "card 3: not every address can be read",
    )


def test_a_company_without_a_person_is_an_organisation() -> None:
    book = vcards("VERSION:3.0\r\nORG:City;Library\r\nEMAIL:desk@library.example")
    assert book.entries == (BookEntry("desk@library.example", "City Library", ContactKind.ORGANISATION),)


@pytest.mark.req("PQ-4")
def test_the_columns_of_google() -> None:
    text = (
        "First Name,Last Name,Organization Name,E-mail 1 - Label,E-mail 1 - Value,E-mail 2 - Value\n"
        'Anna,Lind,,* Work,anna@example.org ::: ANNA@home.example,"""quoted""@example.org"\n'
        ",,City Library,,desk@library.example,\n"
        "No,Address,,,,\n"
    )
    book = read_csv(text.encode("utf-8-sig"))
    assert entries(book) == [
        ("anna@example.org", "Anna Lind"),
        ("anna@home.example", "Anna Lind"),
        ("quoted@example.org", "Anna Lind"),
        ("desk@library.example", "City Library"),
    ]
    assert book.problems == ("line 4: has no address",)


@pytest.mark.req("PQ-4")
def test_the_columns_of_outlook_with_semicolons_and_in_windows_letters() -> None:
    text = "Title;First Name;Middle Name;Last Name;Company;E-mail Address;E-mail Type;E-mail 2 Address\r\n"
    text += "Dr;Jürgen;;Müller;;juergen@example.org;SMTP;jm@work.example\r\n\r\n"
    book = read_csv(text.encode("cp1252"))
    assert entries(book) == [("juergen@example.org", "Jürgen Müller"), ("jm@work.example", "Jürgen Müller")]


def test_a_plain_list_with_tabs_and_utf_16() -> None:
    book = read_csv("name\temail\nAnna\tanna@example.org\nAnna again\tANNA@example.org\n".encode("utf-16"))
    assert entries(book) == [("anna@example.org", "Anna")]


@pytest.mark.parametrize("data", [b"", b"name,phone\nAnna,1\n", b"hello"])
def test_a_table_without_addresses_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match="no column of addresses"):
        read_csv(data)


def test_a_file_without_cards_is_refused() -> None:
    with pytest.raises(BadInput, match="holds no vCard"):
        read_vcards(b"hello")


@steady
@given(
    st.binary(max_size=400) | st.text(alphabet="BEGINVCARD:;=\r\n \\@.aQUOTED-PRINTABLE", max_size=400).map(str.encode)
)
def test_no_file_breaks_the_readers(data: bytes) -> None:
    for read, data_of in ((read_vcards, b"BEGIN:VCARD\n" + data + b"\nEND:VCARD\n"), (read_csv, b"email\n" + data)):
        try:
            book = read(data_of)
        except BadInput:
            continue
        assert all("@" in entry.address and entry.address == entry.address.lower() for entry in book.entries)
