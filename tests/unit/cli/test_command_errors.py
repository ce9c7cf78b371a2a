"""What ends a command, in words: errors of ours by their message, also where tasks that ran together raised them."""

from __future__ import annotations

import pytest

from postroom.cli import main
from postroom.domain.errors import BadInput, Fatal
from tests.support.commands import CommandResult, in_this_process

pytestmark = pytest.mark.req("HW-7")


def ended_by(error: Exception, monkeypatch: pytest.MonkeyPatch) -> CommandResult:
    def broken() -> None:
        raise error

    monkeypatch.setattr(main, "tree", broken)
    return in_this_process("up")


def test_a_group_of_our_errors_is_told_as_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = ExceptionGroup("tasks", [Fatal("The disk is full. Free some space.")])
    done = ended_by(ExceptionGroup("tasks", [inner]), monkeypatch)
    assert (done.code, done.stderr) == (main.FAILED, "error: The disk is full. Free some space.\n")


def test_bad_input_in_a_group_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    done = ended_by(ExceptionGroup("tasks", [BadInput("model.name", "is needed")]), monkeypatch)
    assert (done.code, done.stderr) == (main.BAD_USAGE, "error: model.name: is needed\n")


def test_a_fault_in_a_group_is_told_without_the_tasks_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = ended_by(ExceptionGroup("tasks", [Fatal("ours"), ZeroDivisionError("by zero")]), monkeypatch)
    assert done.code == main.FAILED
    assert "ZeroDivisionError: by zero" in done.stderr
    assert "This is a fault in Postroom" in done.stderr
    assert "Group" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jobs", "list", "--limit", "many"], "'--limit': is not a whole number"),
        (["rules", "apply", "R", "--cap", "0"], "'--cap': is less than 1"),
        (["token", "create", "--name", "a", "--role", "king"], "'--role': 'king' is not one of 'dashboard',"),
        (["jobs", "list", "--type", "\udcff"], "--type: is not text in UTF-8"),
        (["rules", "show", "\udcff"], "name: is not text in UTF-8"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_in_our_words(arguments: list[str], said: str) -> None:
    done = in_this_process(*arguments)
    assert done.code == main.BAD_USAGE
    assert said in " ".join(done.stderr.split())
    assert "Input should" not in done.stderr
    assert "Value error" not in done.stderr
