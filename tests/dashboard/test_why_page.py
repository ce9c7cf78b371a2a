"""Why this tier: pasted headers and archived messages are explained, and a sender is put into a category."""

from __future__ import annotations

import pytest

from tests.support.dashboards import Site, text_of

SPAM = """From: win4u@hotmail.com
To: someone@example.org
Subject: EARN CASH NOW!!! Free money guaranteed
Content-Type: text/html
X-Priority: 1
"""


@pytest.mark.req("DQ-4", "PQ-8")
async def test_pasted_headers_are_explained(site: Site) -> None:
    assert "Paste headers" in text_of((await site.get("/filters/why")).text)
    said = text_of((await site.post("/filters/why", headers=SPAM, labels="")).text)
    assert "It looks like spam that Gmail has not labelled" in said
    assert "several luring words" in said
    found = (await site.api("POST", "/why", json={"headers": SPAM})).json()
    assert (found["treatment"], found["assignment_rule"]) == ("metadata", "fallback_default")
    assert {each["kind"]: each["holds"] for each in found["kinds"]}["spam_like"]
    assert found["category_reasons"]


@pytest.mark.req("DQ-4")
async def test_text_without_headers_is_refused_beside_its_field(site: Site) -> None:
    answer = await site.post("/filters/why", headers="just some words", labels="")
    assert answer.status_code == 422
    assert "has neither From nor Subject" in text_of(answer.text)


@pytest.mark.req("DQ-2")
async def test_a_sender_is_put_into_a_category_and_taken_out_again(site: Site) -> None:
    await site.post("/filters/corrections", sender="Shop.example", category="finance", back="//evil.example")
    assert "shop.example" in text_of((await site.get("/filters/why")).text)
    letter = "From: Shop <a@shop.example>\nSubject: Hello\n"
    found = (await site.api("POST", "/why", json={"headers": letter})).json()
    assert found["category_reasons"] == ["you put mail from shop.example into finance"]
    changed = await site.api("PUT", "/categories/corrections/shop.example", json={"category": "none"})
    assert changed.json()["category"] == "none"
    refused = await site.api("PUT", "/categories/corrections/shop.example", json={"category": "money"})
    assert refused.status_code == 422
    assert (await site.api("DELETE", "/categories/corrections/shop.example")).status_code == 200
    assert (await site.api("GET", "/categories/corrections")).json() == []
