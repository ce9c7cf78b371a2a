"""The page of learned triage and its API: figures, the switch, and a correction in one press."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import select, update

from postroom import kill_switch
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.learning import learned_examples
from postroom.db.tables.mail import messages
from postroom.domain.money import Micros
from postroom.triage.learning import store
from postroom.triage.learning.features import Features
from postroom.triage.learning.store import NewExample
from tests.support.dashboard_data import add_decided_mail
from tests.support.dashboards import Site, text_of
from tests.support.learning import KEY, TO_EARN_IT

pytestmark = pytest.mark.req("DQ-5", "DQ-6")


async def learn(site: Site) -> str:
    """A message that local triage decided, with the right to; its id."""
    message = await add_decided_mail(site, "m1", source="learned", action="archive", confidence=0.99)

    def write(tx: Tx) -> None:
        account_id = tx.execute(select(accounts.c.id).limit(1)).scalar_one()
        now = site.app.clock.now()
        tx.execute(update(messages).values(account_id=account_id))
        store.open_learner(tx, account_id, KEY.id, "a teacher", now)
        example = NewExample(account_id, message, Features((1,), ("sender",)), 2, True, "archive", 0.99, False, ())
        store.add_example(tx, example, now)
        for _ in range(TO_EARN_IT):
            store.compare(tx, account_id, "archive", True, now)
        store.count_decided(tx, account_id, "archive", Micros(20_000), now)

    await site.write(write)
    return message


async def test_the_page_and_the_api_say_who_decided_what_was_saved_and_which_rights_there_are(site: Site) -> None:
    assert "It has seen no mail that the model decided." in (await site.get("/rules/learned")).text
    await learn(site)
    page = text_of((await site.get("/rules/learned")).text)
    assert re.search(r"Decided without the model 100\s?%", page)
    assert "earned" in page.lower()
    found = (await site.api("GET", "/learning")).json()
    assert (found["on"], found["saved_microdollars"]) == (True, 20_000)
    [answer] = found["accounts"][0]["answers"]
    assert (answer["answer"], answer["state"], answer["compared"]) == ("archive", "earned", TO_EARN_IT)


async def test_it_is_switched_off_and_on_and_says_who_did(site: Site) -> None:
    await site.post("/rules/learned/switch")
    assert not (await site.read(kill_switch.learning_switch)).on
    assert "switched off by" in text_of((await site.get("/rules/learned")).text)
    await site.post("/rules/learned/switch", on="yes")
    assert (await site.read(kill_switch.learning_switch)).on


async def test_one_press_on_a_message_teaches_that_such_mail_stays(site: Site) -> None:
    message = await learn(site)
    await site.post("/rules/learned/correct", message=message, back="/rules/learned")
    query = select(learned_examples.c.answer, learned_examples.c.source)
    assert await site.read(lambda tx: tuple(tx.execute(query).one())) == ("none", "owner")
