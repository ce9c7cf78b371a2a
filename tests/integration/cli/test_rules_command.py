"""`postroom rules` as a person uses it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.reader import FileArchiveReader
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.triage.rules.files import RulesFileFormat, parse_text
from tests.support.archives import ME
from tests.support.commands import CommandResult, in_this_process

DOCS = Path(__file__).parents[3] / "docs" / "rules.md"


def rules(*arguments: str) -> CommandResult:
    return in_this_process("rules", *arguments)


def ok(*arguments: str) -> str:
    done = rules(*arguments)
    assert done.code == 0, done.stderr
    return done.stdout


def _letter(number: int, *headers: str) -> IncomingMail:
    lines = [f"Message-ID: <{number}@example.org>", f"To: {ME}", *headers]
    raw = ("\r\n".join(lines) + "\r\n\r\nHello\r\n").encode()
    labels = frozenset({"SENT"} if number == 9 else {"INBOX"})
    received = datetime(2026, 1, 1 + number, tzinfo=UTC)
    return IncomingMail(raw, Provenance.API, f"{number:x}", f"{number:x}", labels, received)


@pytest.fixture
def archive(home: Path) -> Path:
    """Ten letters: shops every other day, one of them with a strange header; the last one is the owner's own."""
    mails = [
        _letter(number, f"From: shop{number % 2}@shop.example", f"Subject: Receipt {number}", f"X-Number: no {number}")
        for number in range(10)
    ]
    with FileArchiveWriter(home / "archive") as store:
        store.store(ME, mails)
    return home


@pytest.mark.req("JB-9")
def test_a_rule_can_be_added_shown_changed_switched_and_removed(home: Path) -> None:
    assert "There are no rules" in ok("list")
    ok(
        "add",
        "Receipts",
        "--domain",
        "shop.example",
        "--subject",
        "receipt",
        "--do",
        "apply_label=R",
        "--do",
        "archive",
    )
    [rule] = rules("list", "--json").json
    assert rule["condition"] == {"sender_domain": "shop.example", "subject_contains": "receipt"}
    assert rule["actions"] == [{"type": "apply_label", "label": "R"}, {"type": "archive"}]
    assert "the subject contains “receipt”" in ok("list")
    assert "priority = 5" in ok("edit", "receipts", "--priority", "5", "--do", "star")
    assert 'actions = ["star"]' in ok("show", "Receipts")
    assert "off" in ok("disable", "Receipts") + ok("list")
    ok("enable", "Receipts")
    assert rules("list", "--json").json[0]["enabled"] is True
    ok("remove", "Receipts", "--dry-run")
    assert len(rules("list", "--json").json) == 1
    ok("remove", "Receipts")
    assert rules("list", "--json").json == []


def test_a_rule_can_be_edited_by_hand(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok("add", "Receipts", "--from", "ann@example.org", "--do", "star")
    monkeypatch.setenv("EDITOR", "sed -i s/star/unstar/")
    assert 'actions = ["unstar"]' in ok("edit", "Receipts")
    monkeypatch.setenv("EDITOR", "sed -i s/unstar/fly/")
    refused = rules("edit", "Receipts")
    assert (refused.code, "'fly' is no action" in refused.stderr) == (2, True)
    monkeypatch.setenv("EDITOR", "true")
    assert "Nothing was changed" in ok("edit", "Receipts")
    assert 'actions = ["unstar"]' in ok("show", "Receipts")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "A", "--do", "archive"), "needs a condition"),
        (("add", "A", "--from", "a@b.c"), "needs an action"),
        (("add", "A", "--from", "a@b.c", "--do", "fly"), "--do: 'fly' is no action"),
        (("try", "--from", "a@b.c", "--do", "apply_label"), "--do: label is missing"),
        (("add", "A", "--from", "a@b.c", "--do", "star", "--scope", "galaxy"), "--scope: 'galaxy' is no scope"),
        (("add", "A", "--subject-regex", "(a", "--do", "star"), "rule (A).condition.subject_regex"),
        (("add", "A", "--subdomains", "--from", "a@b.c", "--do", "star"), "needs --domain"),
        (("add", "A", "--from", "a@b.c", "--do", "star", "--scope", "account:no@b.c"), "there is no account no@b.c"),
        (("add", "A", "--file", "no.toml"), "cannot be read"),
        (("show", "A"), "there is none named 'A'"),
        (("edit", "A", "--priority", "3"), "there is none named 'A'"),
        (("remove", "A"), "there is none named 'A'"),
        (("try",), "name a saved rule"),
        (("try", "--from", "a@b.c", "--account", "nobody@b.c"), "no mail of nobody@b.c"),
        (("import", "no.txt"), ".toml or .yaml"),
        (("directions", "remove", "1"), "there are none"),
        (("guidance", "add", "A", "text", "--scope", "galaxy"), "is no scope"),
    ],
)
def test_a_mistake_is_named_and_the_exit_code_says_so(home: Path, arguments: tuple[str, ...], said: str) -> None:
    done = rules(*arguments)
    assert done.code == 2
    assert said in done.stderr


@pytest.mark.req("JB-9")
def test_a_file_goes_in_and_comes_out_the_same(home: Path, tmp_path: Path) -> None:
    in_docs = _toml_of_the_docs().replace('scope = "account:me@example.org"\n', "")
    source, copy, yaml = tmp_path / "rules.toml", tmp_path / "copy.toml", tmp_path / "rules.yaml"
    source.write_text(in_docs)
    assert rules("import", str(source), "--dry-run", "--json").json["rules"]["added"][0] == "Receipts"
    assert rules("list", "--json").json == []
    ok("import", str(source))
    ok("export", str(copy))
    ok("export", str(yaml))
    read = [
        parse_text(path.read_text(), format)
        for path, format in ((copy, RulesFileFormat.TOML), (yaml, RulesFileFormat.YAML))
    ]
    document = parse_text(in_docs, RulesFileFormat.TOML)
    drafts = sorted(document.rules or (), key=lambda draft: draft.priority)
    assert read == [replace(document, rules=drafts)] * 2
    assert document.directions
    assert document.guidance
    assert ok("import", str(yaml)).splitlines() == [
        "directions: all 1 are as in the file.",
        "rules: all 3 are as in the file.",
        "guidance: all 1 are as in the file.",
    ]
    assert rules("export", str(copy)).code == 2, "a file that is there is not written over unasked"
    source.write_text(in_docs.replace("priority = 10", "priority = 11").replace("Old newsletters", "Newsletters"))
    shown = ok("import", str(source))
    assert "+ Newsletters" in shown
    assert "~ From the team: priority" in shown
    assert "- Old newsletters" in shown


@pytest.mark.req("JB-19")
def test_a_rule_is_tried_before_it_is_saved(archive: Path) -> None:
    done = rules("try", "--from", "shop1@shop.example", "--do", "archive", "--do", "apply_label=Receipts", "--json")
    assert done.stderr == "", "a bar that nobody sees leaves no empty line"
    found = done.json
    assert (found["looked_at"], found["matched"], found["passed_over"]["own"]) == (9, 4, 1)
    assert [mail["subject"] for mail in found["messages"]] == [f"Receipt {number}" for number in (7, 5, 3, 1)]
    assert found["messages"][0]["actions"] == [{"type": "archive"}, {"type": "apply_label", "label": "Receipts"}]
    shown = ok("try", "--header", "X-Number: NO 4", "--do", "star")
    assert "Receipt 4" in shown
    assert "1 of 9 messages match" in shown


@pytest.mark.req("JB-19")
def test_a_query_and_a_limit_narrow_it(archive: Path) -> None:
    every = ("try", "--domain", "shop.example", "--json")
    assert rules(*every, "--limit", "3").json["looked_at"] == 2, "the newest of the three is the owner's own"
    assert rules(*every, "--query", "before:2026/01/04").json["looked_at"] == 3
    assert len(rules(*every, "--show", "1").json["messages"]) == 1
    assert rules(*every, "--show", "1").json["matched"] == 9


@pytest.mark.req("JB-19")
def test_saved_rules_and_files_are_tried_too(archive: Path, tmp_path: Path) -> None:
    ok("add", "Odd", "--from", "shop1@shop.example", "--do", "star", "--disabled")
    assert "4 of 9 messages match" in ok("try", "odd")
    path = tmp_path / "rules.yaml"
    path.write_text(
        "rules:\n"
        "- {name: First, condition: {sender: shop1@shop.example}, actions: [star]}\n"
        f"- {{name: Rest, priority: 200, scope: 'account:{ME}', condition: {{larger_than: 0}}, actions: [archive]}}\n"
        "- {name: Elsewhere, scope: 'account:other@example.org', condition: {larger_than: 0}, actions: [trash]}\n"
    )
    assert rules("try", "--file", str(path), "--json").json["by_rule"] == {"First": 4, "Rest": 5, "Elsewhere": 0}


@pytest.mark.req("JB-19")
def test_trying_touches_nothing(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok("add", "Odd", "--from", "shop1@shop.example", "--do", "trash", "--unattended")
    before = list(_dump(archive)), _files(archive / "archive")

    def refuse(*_: object) -> None:
        raise AssertionError("nobody is called")

    monkeypatch.setattr("socket.socket.connect", refuse)
    ok("try", "Odd")
    ok("try", "--from", "shop1@shop.example", "--do", "trash")
    assert (list(_dump(archive)), _files(archive / "archive")) == before


@pytest.mark.req("JB-19")
def test_ctrl_c_shows_what_was_found_so_far(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = FileArchiveReader.newest_first

    def interrupted(*given: object) -> Iterator[object]:
        for number, step in enumerate(walk(*given)):  # type: ignore[arg-type]
            if number == 4:
                raise KeyboardInterrupt
            yield step

    monkeypatch.setattr(FileArchiveReader, "newest_first", interrupted)
    done = rules("try", "--domain", "shop.example")
    assert done.code == 130
    assert "Stopped. So far: 3 of 3 messages match" in done.stdout


def test_a_rule_moves_in_the_order_of_trial(home: Path) -> None:
    for name in ("First", "Second", "Third"):
        ok("add", name, "--from", "ann@example.org", "--do", "star")
    ok("move", "Third", "up", "--dry-run")
    assert [rule["name"] for rule in rules("list", "--json").json] == ["First", "Second", "Third"]
    ok("move", "Third", "up")
    assert [rule["name"] for rule in rules("list", "--json").json] == ["First", "Third", "Second"]
    ok("move", "First", "up")
    ok("move", "First", "down")
    assert [rule["name"] for rule in rules("list", "--json").json] == ["Third", "First", "Second"]


def test_directions_and_guidance(home: Path) -> None:
    ok("directions", "add", "Be brief.")
    ok("directions", "add", "Be kind.")
    ok("directions", "edit", "2", "Be very kind.")
    ok("directions", "disable", "1")
    assert [(each["text"], each["enabled"]) for each in rules("directions", "list", "--json").json] == [
        ("Be brief.", False),
        ("Be very kind.", True),
    ]
    ok("guidance", "add", "Shops", "Archive receipts.", "--scope", "domain:shop.example")
    ok("guidance", "edit", "Shops", "--text", "Keep receipts.")
    shown = ok("guidance", "for", "orders@eu.SHOP.example")
    assert "- Be very kind." in shown
    assert "- Keep receipts. (Shops)" in shown
    ok("guidance", "disable", "shops")
    ok("directions", "remove", "2")
    assert ok("guidance", "for", "orders@shop.example").strip() == "Nothing."
    assert rules("guidance", "list", "--json").json[0]["scope"] == "domain:shop.example"
    ok("guidance", "remove", "Shops")


def test_a_rehearsal_changes_nothing_and_refuses_what_would_be_refused(home: Path, tmp_path: Path) -> None:
    ok("add", "Receipts", "--from", "ann@example.org", "--do", "star")
    ok("directions", "add", "Be brief.")
    ok("guidance", "add", "Shops", "Offers may go.")
    before = list(_dump(home))
    part = tmp_path / "part.toml"
    part.write_text("directions = []\n")
    for arguments, said in (
        (("directions", "add", "Be kind."), "Would add: Be kind."),
        (("directions", "edit", "1", "Be kind."), "Would replace: Be brief."),
        (("directions", "disable", "1"), "Would be off: Be brief."),
        (("directions", "remove", "1"), "Would remove: Be brief."),
        (("guidance", "add", "More", "text"), "Would add: More"),
        (("guidance", "edit", "shops", "--text", "Keep."), "Would be changed: Shops"),
        (("guidance", "disable", "shops"), "Would be off: Shops"),
        (("guidance", "remove", "shops"), "Would remove: Shops"),
        (("edit", "receipts", "--priority", "7"), "priority = 7"),
        (("import", str(part)), "directions: would add 0, change 0, remove 1; 0 stay as they are."),
    ):
        assert said in ok(*arguments, "--dry-run")
    assert list(_dump(home)) == before
    taken = rules("add", "RECEIPTS", "--from", "ann@example.org", "--do", "star", "--dry-run")
    assert (taken.code, "already" in taken.stderr) == (2, True)
    ok("import", str(part))
    assert (rules("directions", "list", "--json").json, len(rules("list", "--json").json)) == ([], 1)


@pytest.mark.req("JB-11")
def test_who_adds_a_dangerous_rule_is_told_that_it_waits(home: Path) -> None:
    bin_it = ("--from", "ann@example.org", "--do", "trash")
    said = "trash will need your approval each time: moving to the trash is a dangerous action."
    assert said in ok("add", "A", *bin_it)
    assert "wait" not in ok("add", "B", *bin_it, "--unattended") + ok("edit", "A", "--do", "star")


def test_guidance_without_room_is_told_of(home: Path) -> None:
    for number in range(3):
        ok("guidance", "add", f"Long {number}", "x" * 1_500)
    assert "does NOT get these, because there is no room for more: Long 2." in ok("guidance", "for", "ann@example.org")


def test_the_commands_of_the_documentation_run(archive: Path) -> None:
    commands = re.findall(r"^\$ postroom (rules .*)$", DOCS.read_text(), re.MULTILINE)
    assert len(commands) >= 9
    for command in commands:
        arguments = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', command)]
        done = in_this_process(*arguments)
        assert done.code == 0, (command, done.stderr)


def test_the_error_of_the_documentation_is_what_a_person_gets(home: Path, tmp_path: Path) -> None:
    [said] = re.findall(r"^(error: rules\[2\].*)$", DOCS.read_text(), re.MULTILINE)
    path = tmp_path / "rules.toml"
    path.write_text(_toml_of_the_docs().replace(r"'^\[urgent\]'", "'[urgent'"))
    assert rules("import", str(path)).stderr.strip() == said


def test_every_condition_and_key_is_in_the_documentation() -> None:
    from postroom.triage.rules.conditions import LEAF_NAMES

    text = DOCS.read_text()
    assert [name for name in (*LEAF_NAMES, "all", "any", "not", "unattended") if f"`{name}`" not in text] == []


def _toml_of_the_docs() -> str:
    [block] = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return str(block)


def _dump(home: Path) -> Iterator[str]:
    [path] = [each for each in home.iterdir() if each.suffix in (".db", ".sqlite", ".sqlite3")]
    with sqlite3.connect(path) as connection:
        yield from connection.iterdump()


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*.db"))}
