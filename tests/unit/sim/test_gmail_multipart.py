"""Multipart bodies of requests, kept to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.sim.gmail.api_errors import ApiError
from postroom.sim.gmail.call import sections

BODIES = st.lists(st.binary(max_size=40).filter(lambda body: b"--b" not in body), max_size=5)


@settings(deadline=None, derandomize=True)
@given(BODIES, st.sampled_from([b"\r\n", b"\n"]))
def test_each_part_comes_out_as_it_went_in(bodies: list[bytes], end: bytes) -> None:
    parts = [b"--b" + end + b"A: 1" + end + end + body for body in bodies]
    text = b"".join(part + end for part in parts) + b"--b--" + end
    found = sections(text, "multipart/mixed; boundary=b")
    if end == b"\n":
        bodies = [body.removesuffix(b"\r") for body in bodies]
    assert [part.body for part in found] == bodies
    assert all(part.headers == {"a": "1"} for part in found)


def test_a_part_without_headers_is_all_body() -> None:
    assert [part.body for part in sections(b"--b\r\n\r\nX: 1\r\n--b--", 'multipart/mixed; boundary="b"')] == [b"X: 1"]


@pytest.mark.parametrize("content_type", ["multipart/mixed", "", "multipart/mixed; boundary=other"])
def test_without_its_boundary_a_body_is_refused(content_type: str) -> None:
    with pytest.raises(ApiError):
        sections(b"--b\r\n\r\nx\r\n--b--", content_type)
