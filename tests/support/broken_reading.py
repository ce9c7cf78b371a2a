"""A reader of mail that fails for chosen messages, here and in the child process, until it is mended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from postroom.mail.parsing import ParsedMail, parse_mail
from postroom.reading import mail
from postroom.reading.limited import Failure, Limits, ReadingFailed


def break_reading(
    monkeypatch: pytest.MonkeyPatch, is_hostile: Callable[[bytes], bool], error: type[Exception] = ValueError
) -> None:
    """Until `monkeypatch.undo()`, reading such a message raises this error wherever it is read."""

    def parse(raw: bytes) -> ParsedMail:
        if is_hostile(raw):
            raise error
        return parse_mail(raw)

    class Child:
        def run(
            self, task: str, header: Mapping[str, Any], body: bytes = b"", limits: Limits | None = None
        ) -> tuple[dict[str, Any], bytes]:
            if is_hostile(body):
                raise ReadingFailed(Failure.ERROR, f"{error.__name__} in mail.py")
            return mail.answer(header, body)

    monkeypatch.setattr(mail, "parse_mail", parse)
    monkeypatch.setattr(mail, "shared_reader", Child)
