"""import, export and show as a person uses them: what they print, write and refuse, and their exit codes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroom.cli.main import run
from tests.support.mail import generated_mailbox, letter, write_maildir, write_mbox, write_takeout
from tests.support.reading_faults import break_reading

ME = "owner@example.com"


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


class Postroom:
    """The command, run in this process: starting one costs a second."""

    def __init__(self, capture: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str | Path) -> Done:
        self._capture.readouterr()
        self._monkeypatch.setattr(sys, "argv", ["postroom", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run()
        return Done(int(ended.value.code or 0), *self._capture.readouterr())

    def printed(self, *arguments: str | Path) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def postroom(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
) -> Postroom:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return Postroom(capsysbinary, monkeypatch)


@pytest.fixture
def mbox(tmp_path: Path, home: Path) -> Path:
    """Two letters, one with an attachment whose name would be a path."""
    path = tmp_path / "mail.mbox"
    headers = {"Message-ID": "<one@x.example>", "Date": "Mon, 05 Jan 2026 12:00:00 +0000"}
    write_mbox(
        path,
        [
            letter("With a file", "See \x1b[31mthere\n", headers=headers, attachment=("../../evil.pdf", b"%PDF \xff")),
            letter("Without", "Nothing.\n", headers={"Message-ID": "<two@x.example>"}),
        ],
    )
    return path


@pytest.mark.req("SY-16")
def test_mail_goes_in_is_shown_and_comes_out_again(postroom: Postroom, mbox: Path, tmp_path: Path) -> None:
    report = postroom.printed("import", "mbox", mbox, "--account", ME)["report"]
    assert (report["found"], report["stored"], report["duplicates"]) == (2, 2, 0)
    again = postroom("import", "mbox", mbox, "--account", ME)
    assert b"0 stored, 2 were there already, 0 unreadable" in again.stdout
    shown = postroom.printed("show", "<one@x.example>")
    assert shown["message"]["subject"] == "With a file"
    key = shown["message"]["key"]
    raw = postroom("show", key[:8], "--raw").stdout
    assert postroom("export", "eml", "--out", tmp_path / "eml").returncode == 0
    assert raw in [path.read_bytes() for path in (tmp_path / "eml").iterdir()]
    exported = postroom.printed("export", "mbox", "--out", tmp_path / "out.mbox", "--account", ME)["report"]
    assert exported["exported"] == 2
    assert postroom("export", "mbox", "--out", tmp_path / "out.mbox").returncode == 2


@pytest.mark.req("SY-15", "SY-16")
def test_what_a_search_finds_is_exported_whole(postroom: Postroom, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "generated.mbox"
    box = generated_mailbox(600)
    write_mbox(path, map(box.raw, range(600)))
    postroom("import", "mbox", path, "--account", ME)
    found = postroom.printed("search", "has:attachment", "--count")
    out = tmp_path / "out"
    report = postroom.printed("export", "eml", "--query", "has:attachment", "--out", out)
    assert report["report"]["exported"] == len(list(out.iterdir())) == found["messages"] > 10
    mistake = postroom("export", "eml", "--query", "form:ann", "--out", out)
    assert (mistake.returncode, b"query" in mistake.stderr) == (2, True)


@pytest.mark.req("FD-5")
def test_what_a_search_finds_is_exported_as_a_table(postroom: Postroom, tmp_path: Path, home: Path) -> None:
    path, out = tmp_path / "mail.mbox", tmp_path / "out.csv"
    dated = {"Message-ID": "<one@x.example>", "Date": "Mon, 05 Jan 2026 12:00:00 +0000"}
    formula, quoted = '=HYPERLINK("http://x.example")', 'Lunch, "maybe"'
    write_mbox(path, [letter(formula, headers=dated), letter(quoted, "Noodles.\n"), letter("Other", "No.\n")])
    postroom("import", "mbox", path, "--account", ME)
    done = postroom("export", "csv", "--query", "HYPERLINK OR noodles", "--out", out)
    assert (done.returncode, done.stdout) == (0, f"Exported 2 messages to {out}.\n".encode())
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["subject"] for row in rows} == {f"'{formula}", quoted}
    [first] = [row for row in rows if row["date"] == "2026-01-05T12:00:00+00:00"]
    shown = postroom.printed("show", "<one@x.example>")["message"]
    assert (first["key"], first["size"], first["account"]) == (shown["key"], str(shown["size"]), ME)
    assert (first["from"], first["to"]) == ("Ann <ann@friends.example>", ME)
    assert postroom("export", "csv", "--out", out).returncode == 2  # never over another file


@pytest.mark.req("FD-5")
def test_a_conversation_of_several_mailboxes_is_shown_searched_and_exported(
    postroom: Postroom, tmp_path: Path, home: Path
) -> None:
    """Half of it was imported into one mailbox, half into another; the references of the last were cut."""
    first = {"Message-ID": "<one@x.example>", "Date": "Mon, 05 Jan 2026 12:00:00 +0000"}
    second = {"Message-ID": "<two@x.example>", "In-Reply-To": "<one@x.example>"}
    third = {"Message-ID": "<three@x.example>", "In-Reply-To": "<two@x.example>"}
    write_mbox(tmp_path / "a.mbox", [letter("Lunch", headers=first), letter("Re: Lunch", headers=third)])
    write_mbox(tmp_path / "b.mbox", [letter("Re: Lunch", "Noodles.\n", headers=second), letter("Other", "No.\n")])
    postroom("import", "mbox", tmp_path / "a.mbox", "--account", ME)
    postroom("import", "mbox", tmp_path / "b.mbox", "--account", "old@example.com")
    assert postroom.printed("archive", "conversations") == {"added": 4, "messages": 4, "conversations": 1}
    assert (
        b"4 messages are indexed, 0 of them now. Conversations of two messages or more: 1."
        in postroom("archive", "conversations").stdout
    )
    shown = postroom.printed("show", "<three@x.example>")
    name = shown["conversation"]["name"]
    assert shown["conversation"]["messages"] == 3
    assert shown["conversation"]["people"][0] == {"address": "ann@friends.example", "wrote": 3, "received": 0}
    assert f"3 messages of ann@friends.example (3); `postroom search thread:{name}`" in (
        postroom("show", "<one@x.example>").stdout.decode()
    )
    for query in (f"thread:{name}", f"thread:{shown['message']['key']}", "has:conversation"):
        assert postroom.printed("search", query, "--count")["messages"] == 3
    assert postroom.printed("search", "thread:<one@x.example> noodles", "--count")["messages"] == 1
    for format in ("csv", "mbox"):
        out = tmp_path / f"out.{format}"
        done = postroom("export", format, "--query", f"thread:{name}", "--out", out)
        assert (done.returncode, done.stdout.startswith(b"Exported 3 messages")) == (0, True)
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        assert sorted(row["account"] for row in csv.DictReader(file)) == ["old@example.com", ME, ME]
    assert b"Noodles." in (tmp_path / "out.mbox").read_bytes()


def test_a_message_is_shown_without_driving_the_terminal(postroom: Postroom, mbox: Path) -> None:
    postroom("import", "mbox", mbox, "--account", ME)
    text = postroom("show", "<one@x.example>").stdout.decode()
    assert "subject      With a file" in text
    assert "See \N{REPLACEMENT CHARACTER}[31mthere" in text
    assert "\x1b" not in text


def test_attachments_are_extracted_under_safe_names_without_overwriting(
    postroom: Postroom, mbox: Path, tmp_path: Path
) -> None:
    postroom("import", "mbox", mbox, "--account", ME)
    [listed] = postroom.printed("show", "<one@x.example>", "--attachments")
    assert (listed["number"], listed["filename"]) == (0, "evil.pdf")
    out = tmp_path / "a" / "b"
    saved = postroom.printed("show", "<one@x.example>", "--extract", "0", "--out", out)
    assert Path(saved["path"]) == out / "evil.pdf"
    assert (out / "evil.pdf").read_bytes() == b"%PDF \xff"
    (out / "evil.pdf").write_bytes(b"mine")
    other = postroom.printed("show", "<one@x.example>", "--extract", "0", "--out", out)
    assert Path(other["path"]) == out / "evil-2.pdf"
    assert (out / "evil.pdf").read_bytes() == b"mine"
    missing = postroom("show", "<two@x.example>", "--extract", "0", "--out", out)
    assert (missing.returncode, b"it has none" in missing.stderr) == (2, True)


def test_a_dry_run_changes_nothing(postroom: Postroom, mbox: Path, home: Path) -> None:
    assert postroom.printed("import", "mbox", mbox, "--account", ME, "--dry-run")["report"]["found"] == 2
    assert not (home / "archive").exists()


@pytest.mark.parametrize("format", ["takeout", "maildir"])
def test_every_format_has_its_command(postroom: Postroom, home: Path, tmp_path: Path, format: str) -> None:
    box = generated_mailbox(5)
    if format == "takeout":
        write_takeout(tmp_path / "mail", box)
        hint = postroom("import", "mbox", tmp_path / "mail", "--account", ME, "--dry-run").stderr
        assert b"import takeout" in hint
    else:
        write_maildir(tmp_path / "mail", (box.raw(index) for index in range(5)))
    assert postroom.printed("import", format, tmp_path / "mail", "--account", ME)["report"]["stored"] == 5


def test_an_interrupt_stores_what_was_read_and_the_next_run_goes_on(
    postroom: Postroom, home: Path, tmp_path: Path
) -> None:
    box = generated_mailbox(3_000)
    write_takeout(tmp_path / "mail", box)
    command = [sys.executable, "-m", "postroom", "import", "takeout", str(tmp_path / "mail"), "--account", ME, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    while not (home / "archive" / "imports.db-wal").exists():
        assert process.poll() is None
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the command
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    stopped = json.loads(out)["report"]
    assert stopped["stopped"]
    rest = postroom.printed("import", "takeout", tmp_path / "mail", "--account", ME)["report"]
    assert stopped["stored"] < rest["stored"] == 3_000, "the count goes on"
    assert rest["duplicates"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "mbox", "missing", "--account", ME], "error: path: missing does not exist"),
        (["import", "mbox", ".", "--account", ME], "error: path: . is a folder"),
        (["import", "eml", ".", "--account", "nobody"], "error: --account: 'nobody' is not a mail address"),
        (["show", "i1234567"], "error: id: the archive has no message i1234567"),
        (["show", "x", "--raw", "--attachments"], "error: --raw: --raw, --attachments and --extract cannot"),
    ],
)
def test_bad_usage_names_the_field_and_exits_with_2(
    postroom: Postroom, home: Path, arguments: list[str], message: str
) -> None:
    done = postroom(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(message)


HOSTILE = letter("Hostile", body="Nothing is wrong with me.")


@pytest.mark.req("HW-1")
def test_a_message_that_breaks_the_reader_is_imported_as_it_is_and_shown_with_the_reason(
    postroom: Postroom, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mail.mbox"
    write_mbox(path, [letter("Before"), HOSTILE, letter("After")])
    break_reading(monkeypatch, lambda raw: b"Hostile" in raw, MemoryError)
    done = postroom("import", "mbox", path, "--account", ME)
    assert done.returncode == 0
    assert b"MemoryError in mail.py; kept as it is" in done.stdout
    assert b"3 stored" in done.stdout
    [key] = [hit["message"]["key"] for hit in postroom.printed("search", "Hostile")["hits"]]
    shown = postroom("show", key)
    assert shown.returncode == 0
    assert b"This message could not be read: MemoryError in mail.py." in shown.stdout
    assert b"Hostile" in shown.stdout
    assert postroom.printed("show", key)["trouble"] == "MemoryError in mail.py"
    raw = postroom("show", key, "--raw").stdout
    assert raw.replace(b"\r\n", b"\n") == HOSTILE.replace(b"\r\n", b"\n")


@pytest.mark.req("HW-1", "HW-2")
def test_the_mails_that_stopped_everything_are_imported_and_shown(
    postroom: Postroom, home: Path, tmp_path: Path
) -> None:
    head = b"From: Eve <eve@x.example>\nSubject: %s\nMessage-ID: <%s@x.example>\n"
    reference = head % (b"one", b"one") + b"Content-Type: text/html\n\n<p>Hi &#" + b"9" * 5_000 + b"; there</p>\n"
    damaged = head % (b"two", b"two") + b"Content-Transfer-Encoding: base64\n\n" + b"!A" * 300_001 + b"\n"
    path = tmp_path / "mail.mbox"
    write_mbox(path, [reference, damaged])
    report = postroom.printed("import", "mbox", path, "--account", ME)["report"]
    assert (report["stored"], report["unreadable_count"]) == (2, 0)
    for message_id in ("<one@x.example>", "<two@x.example>"):
        assert postroom("show", message_id).returncode == 0
    assert b"there" in postroom("show", "<one@x.example>").stdout
    assert postroom.printed("show", "<two@x.example>")["trouble"] is None, "nothing but JSON is printed"
