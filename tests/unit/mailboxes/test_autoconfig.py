"""What domains say about their servers, and what is not believed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.errors import BadInput
from postroom.mailboxes.imap.autoconfig import (
    BadDnsAnswer,
    DnsAnswer,
    HostRecord,
    RecordKind,
    dns_query,
    domains_above,
    is_host_name,
    read_autoconfig,
    read_dns_answer,
    read_name_servers,
    servers_of_records,
)
from postroom.mailboxes.imap.connection import Security
from postroom.mailboxes.imap.providers import (
    PRESETS,
    address_given,
    parse_submission,
    preset_at,
    preset_for,
    preset_named,
    submission_server,
)
from tests.support.mail_domains import config_file, dns_reply, labels_of, mx, srv

EMAIL = "ann@x.example"
QUERY = dns_query(7, "_imaps._tcp.x.example", RecordKind.SRV)
labels = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=20)
hosts = st.lists(labels, min_size=1, max_size=4).map(lambda parts: ".".join([*parts, "example"]))


@pytest.mark.req("IM-1")
def test_presets_are_whole_unique_and_protected() -> None:
    keys = [each.key for each in PRESETS]
    domains = [domain for each in PRESETS for domain in each.domains]
    assert len(set(keys)) == len(keys)
    assert len(set(domains)) == len(domains)
    for each in PRESETS:
        assert preset_named(each.key) is each
        assert each.hint.endswith(".")
        plain = Security.PLAIN in (each.address.security, each.submission.security)
        assert plain == (each.name == "Proton Bridge")
        assert parse_submission(str(each.submission)) == each.submission
        assert address_given(each, None, None, None) == each.address
    wanted = {"Fastmail", "iCloud", "Outlook.com", "Yahoo", "GMX", "Posteo", "mailbox.org", "Proton Bridge"}
    assert wanted <= {each.name for each in PRESETS}
    assert preset_at("imap.fastmail.com") is preset_for("ann@fastmail.com")
    assert preset_at("127.0.0.1") is None


def test_what_is_given_goes_before_the_preset() -> None:
    preset = preset_for("ann@fastmail.com")
    assert str(address_given(preset, None, None, Security.STARTTLS)) == "imap+starttls://imap.fastmail.com:143"
    assert str(address_given(preset, "imap.x.example", None, None)) == "imaps://imap.x.example:993"
    assert str(address_given(None, "127.0.0.1", 1143, None)) == "imap://127.0.0.1:1143"
    assert address_given(None, None, None, None) is None


def test_mail_is_sent_over_tls_or_from_this_machine() -> None:
    assert str(submission_server("smtp.x.example")) == "smtps://smtp.x.example:465"
    assert str(submission_server("smtp.x.example", 587)) == "smtp+starttls://smtp.x.example:587"
    with pytest.raises(BadInput, match="smtp-host"):
        submission_server("smtp.x.example", 25, Security.PLAIN)
    assert parse_submission("") is None
    for text in ("imaps://smtp.x.example:465", "smtps://smtp.x.example", "nonsense"):
        with pytest.raises(BadInput):
            parse_submission(text)


@pytest.mark.req("IM-1")
def test_a_configuration_names_server_user_and_submission() -> None:
    found = read_autoconfig(config_file("imap.x.example", 143, "STARTTLS", "%EMAILLOCALPART%", "smtp.x.example"), EMAIL)
    assert found is not None
    assert (str(found.address), found.user) == ("imap+starttls://imap.x.example:143", "ann")
    assert str(found.submission) == "smtp+starttls://smtp.x.example:587"
    placed = read_autoconfig(config_file("imap.%EMAILDOMAIN%"), EMAIL)
    assert placed is not None
    assert (placed.address.host, placed.user, placed.submission) == ("imap.x.example", EMAIL, None)


@pytest.mark.req("IM-1")
@pytest.mark.parametrize(
    "data",
    [
        config_file("imap.x.example", 143, "plain"),
        config_file("imap.x.example", 143, ""),
        config_file("127.0.0.1"),
        config_file("localhost"),
        config_file("imap.x.example", 0),
        config_file("imap.x.example", 99_999),
        config_file("imap.x.example:80/x"),
        b"<!DOCTYPE clientConfig [<!ENTITY a 'imap.x.example'>]>" + config_file("&a;").partition(b"?>")[2],
        b"<html><body>Not found</body></html>",
        b"<clientConfig>" + b"<a>" * 100_000,
        b"<clientConfig>" + b"<a/>" * 100_000 + b"</clientConfig>",
        b"<clientConfig/>" + b" " * 300_000,
        b"",
    ],
)
def test_a_configuration_is_not_believed_for_plain_text_or_odd_hosts(data: bytes) -> None:
    assert read_autoconfig(data, EMAIL) is None


def test_an_odd_user_name_is_replaced_by_the_address() -> None:
    found = read_autoconfig(config_file("imap.x.example", user="%REALNAME%"), EMAIL)
    assert found is not None
    assert found.user == EMAIL


@pytest.mark.req("IM-7")
@given(st.binary(max_size=2_000))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert read_autoconfig(data, EMAIL) is None
    try:
        read_dns_answer(data, QUERY, RecordKind.SRV)
    except BadDnsAnswer:
        return


@given(st.binary(max_size=400), st.integers(0, 400))
def test_a_damaged_answer_is_refused_or_names_plain_hosts(noise: bytes, at: int) -> None:
    whole = dns_reply(QUERY, RecordKind.SRV, [srv("imap.x.example", 993), srv("two.x.example", 994, 5)])
    damaged = whole[:at] + noise + whole[at + len(noise) :]
    try:
        answer = read_dns_answer(damaged, QUERY, RecordKind.SRV)
    except BadDnsAnswer:
        return
    assert all(is_host_name(each.host) and each.port for each in answer.records)


@pytest.mark.req("IM-1")
@given(st.lists(st.tuples(hosts, st.integers(1, 65_535), st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_records_come_back_as_they_were_written_the_best_first(
    written: list[tuple[str, int, int, int]],
) -> None:
    reply = dns_reply(QUERY, RecordKind.SRV, [srv(*each) for each in written])
    found = read_dns_answer(reply, QUERY, RecordKind.SRV).records
    expected = [HostRecord(priority, weight, port, host) for host, port, priority, weight in written]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert [each.priority for each in found] == sorted(each.priority for each in expected)


def test_only_the_answer_to_this_very_question_counts() -> None:
    reply = dns_reply(QUERY, RecordKind.SRV, [srv("imap.x.example", 993)])
    assert read_dns_answer(reply, QUERY, RecordKind.SRV).records
    other = dns_query(8, "_imaps._tcp.x.example", RecordKind.SRV)
    another = dns_query(7, "_imaps._tcp.y.example", RecordKind.SRV)
    for wrong in (other, another, dns_query(7, "_imaps._tcp.x.example", RecordKind.MX)):
        with pytest.raises(BadDnsAnswer):
            read_dns_answer(dns_reply(wrong, RecordKind.SRV, [srv("evil.example", 993)]), QUERY, RecordKind.SRV)
    with pytest.raises(BadDnsAnswer):
        read_dns_answer(QUERY, QUERY, RecordKind.SRV)
    assert read_dns_answer(dns_reply(QUERY, RecordKind.SRV, [], 0x8183), QUERY, RecordKind.SRV) == DnsAnswer()
    with pytest.raises(BadDnsAnswer, match="code 2"):
        read_dns_answer(dns_reply(QUERY, RecordKind.SRV, [], 0x8182), QUERY, RecordKind.SRV)
    assert read_dns_answer(dns_reply(QUERY, RecordKind.SRV, [], 0x8380), QUERY, RecordKind.SRV).is_truncated


def test_an_alias_is_followed_and_records_of_others_are_passed_over() -> None:
    alias, foreign = labels_of("real.example"), labels_of("evil.example")
    record = srv("imap.x.example", 993)
    body = b"\xc0\x0c" + struct.pack(">HHIH", 5, 1, 60, len(alias)) + alias
    body += foreign + struct.pack(">HHIH", 33, 1, 60, len(record)) + srv("evil.x.example", 993)
    body += alias + struct.pack(">HHIH", 33, 1, 60, len(record)) + record
    reply = QUERY[:2] + struct.pack(">5H", 0x8180, 1, 3, 0, 0) + QUERY[12:] + body
    assert [each.host for each in read_dns_answer(reply, QUERY, RecordKind.SRV).records] == ["imap.x.example"]


def test_a_name_that_points_at_itself_ends() -> None:
    at = len(QUERY)
    body = struct.pack(">H", 0xC000 | at) + struct.pack(">HHIH", 33, 1, 60, 0)
    with pytest.raises(BadDnsAnswer):
        read_dns_answer(QUERY[:2] + struct.pack(">5H", 0x8180, 1, 1, 0, 0) + QUERY[12:] + body, QUERY, RecordKind.SRV)


@pytest.mark.req("IM-1")
def test_services_mean_tls_or_starttls_and_a_lone_dot_means_none() -> None:
    def answer(*records: bytes) -> DnsAnswer:
        return read_dns_answer(dns_reply(QUERY, RecordKind.SRV, records), QUERY, RecordKind.SRV)

    both = {"_imap._tcp": answer(srv("a.x.example", 143)), "_imaps._tcp": answer(srv("b.x.example", 993))}
    found = servers_of_records(both, EMAIL)
    assert found is not None
    assert str(found.address) == "imaps://b.x.example:993"
    only = servers_of_records(
        {"_imap._tcp": both["_imap._tcp"], "_imaps._tcp": answer(srv(".", 0)), "_submission._tcp": both["_imap._tcp"]},
        EMAIL,
    )
    assert only is not None
    assert str(only.address) == "imap+starttls://a.x.example:143"
    assert str(only.submission) == "smtp+starttls://a.x.example:143"
    assert servers_of_records({}, EMAIL) is None


def test_exchangers_and_name_servers() -> None:
    query = dns_query(7, "x.example", RecordKind.MX)
    reply = dns_reply(query, RecordKind.MX, [mx("b.mail.example", 20), mx("a.mail.example", 10)])
    assert [each.host for each in read_dns_answer(reply, query, RecordKind.MX).records] == [
        "a.mail.example",
        "b.mail.example",
    ]
    assert domains_above("aspmx.l.google.example") == ("l.google.example", "google.example")
    assert domains_above("mail.example") == ()
    text = "# servers\nnameserver 192.0.2.1\nsearch x\nnameserver\nnameserver 2001:db8::1\n"
    assert read_name_servers(text) == ("192.0.2.1", "2001:db8::1")
    with pytest.raises(ValueError, match="no name"):
        dns_query(1, "a..b", RecordKind.MX)
