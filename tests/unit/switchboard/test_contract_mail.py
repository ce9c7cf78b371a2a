"""Raw mail in the contract: bytes within a process, base64 over MCP."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from postroom.contract.mail import RawMailArgument, StoreArguments

RAW = bytes(range(256))


def of(raw: bytes) -> StoreArguments:
    mail = RawMailArgument(gmail_id="18f0", internal_date=1, raw=raw)
    return StoreArguments(endpoint_identity="me@example.com", messages=[mail])


@pytest.mark.req("PL-4")
@pytest.mark.parametrize("raw", [RAW, b""])
def test_raw_mail_survives_the_way_over_json(raw: bytes) -> None:
    given = of(raw)
    wire = given.wire()
    assert isinstance(wire["messages"][0]["raw"], str)
    assert StoreArguments.model_validate(wire) == given


def test_within_a_process_the_same_bytes_are_handed_on() -> None:
    given = of(RAW)
    assert StoreArguments.model_validate(given).messages[0].raw is RAW


@pytest.mark.parametrize("raw", ["not base64", "YQ", 7, None, ["YQ=="]])
def test_anything_else_is_refused(raw: object) -> None:
    with pytest.raises(ValidationError, match="raw"):
        RawMailArgument.model_validate({"gmail_id": "18f0", "internal_date": 1, "raw": raw})


def test_mail_is_not_shown_when_arguments_are_printed() -> None:
    assert "secret" not in repr(of(b"a secret"))
