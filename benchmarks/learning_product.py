"""What local triage saves in the simulated mailbox, through the whole product: live passes, triage, jobs and actions.

    python -m benchmarks.learning_product [--messages N] [--json FILE]

Companies and people write to a simulated mailbox. The model's stand-in answers each kind of their mail in one way, so
that it is known which labels every message would have without local triage; those that it has in the end are compared
with them. The money saved is what the messages that the model was not asked about would have cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from rich.console import Console
from sqlalchemy import func, select

from benchmarks.report import Verdict, machine_facts, verdict_table
from postroom.accounts.account import Account
from postroom.accounts.account_jobs import job_of
from postroom.app.installation import App, open_app
from postroom.app.worker import open_worker
from postroom.audit import Actor
from postroom.db.tables.triage import decisions, model_calls
from postroom.domain.jobs import HISTORY_SYNC
from postroom.mailboxes.credentials import StaticGrant
from postroom.settings import OFF, ModelSettings, RecurringSettings, SafetySettings, Settings
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sim.model.answers import Script, ScriptedAnswer
from postroom.sim.model.server import ModelSim, running_model
from postroom.telemetry import logs

OWNER = "owner@example.com"
LEAST_SAVED, LEAST_SAME = 0.70, 0.99
_AT_ONCE = 100
_MOST_HIDDEN = 100_000
COMPANIES = {
    ("newsletter@gazette.example", "This week in the Gazette"): "archive",
    ("updates@shop.example", "Offers that end on Sunday"): "archive",
    ("orders@shop.example", "Your order has shipped"): "star",
    ("notifications@forum.example", "New answers in your threads"): "mark_read",
    ("no-reply@ci.example", "Build passed on main"): "archive",
    ("info@club.example", "What is on in the club"): "none",
}
PEOPLE = ("anna@home.example", "ben@work.example", "carla@school.example")
_SHARE_OF_PEOPLE = 0.08
_EFFECTS = {"archive": ("INBOX", False), "mark_read": ("UNREAD", False), "star": ("STARRED", True)}


@dataclass
class ProductRun:
    messages: int = 0
    by: dict[str, int] = field(default_factory=dict)
    """Decisions, by who made them."""
    calls: int = 0
    spent_microdollars: int = 0
    same_labels: int = 0
    different: dict[str, int] = field(default_factory=dict)

    @property
    def saved(self) -> float:
        """The share of the spend that there would be, had the model been asked about every message."""
        each = self.spent_microdollars / self.calls if self.calls else 0.0
        return 1 - self.spent_microdollars / (each * self.judged) if each else 0.0

    @property
    def judged(self) -> int:
        """Messages that the model was asked about, or would have been."""
        return self.by.get("llm", 0) + self.by.get("learned", 0)


def letters(count: int, seed: int = 5) -> list[tuple[bytes, str]]:
    """Mail, and what the model answers to it."""
    dice, kinds = random.Random(seed), list(COMPANIES)
    found = []
    for number in range(count):
        if dice.random() < _SHARE_OF_PEOPLE:
            found.append((_letter(dice.choice(PEOPLE), f"About plan {number}", number), "none"))
        else:
            sender, subject = dice.choice(kinds)
            found.append((_letter(sender, f"{subject}, {number}", number), COMPANIES[sender, subject]))
    return found


def _letter(sender: str, subject: str, number: int) -> bytes:
    domain = sender.rpartition("@")[2]
    mail = EmailMessage()
    results = f"mx.google.com; dkim=pass header.i=@{domain}; spf=pass; dmarc=pass header.from={domain}"
    mail["Authentication-Results"] = results
    mail["From"], mail["To"], mail["Subject"] = sender, OWNER, subject
    mail["Message-ID"] = f"<{number}@{domain}>"
    mail.set_content(f"Text number {number} from {domain}.\n")
    return mail.as_bytes()


def _teach(model: ModelSim) -> None:
    """The stand-in answers by the sender and the subject; what fits nothing stays as it is."""
    for (sender, subject), answer in COMPANIES.items():
        model.responder.stage.add_script(Script(pattern=f"{sender}.*{subject}", answer=_answer(answer)))
    model.responder.stage.add_script(Script(pattern=".", answer=_answer("none")))


def _answer(tool: str) -> ScriptedAnswer:
    return ScriptedAnswer(tool=tool, arguments={"confidence": 0.97, "reason": "As ever.", "needs_approval": False})


def _settings(home: Path, model: ModelSim) -> Settings:
    never = {name: OFF for name in ("sync", "bad_messages", "archiver", "live", "backfill", "labels", "sentinel")}
    return Settings(
        home=home,
        model=ModelSettings(
            provider="compatible",
            name="simulated-small",
            base_url=model.url,
            api_key=SecretStr(model.token),
            input_price=Decimal("0.30"),
            output_price=Decimal("2.50"),
            daily_ceiling_cents=1_000_000,
        ),
        safety=SafetySettings(hides_per_hour=_MOST_HIDDEN),
        recurring=RecurringSettings(**never),
    )


async def run(count: int) -> ProductRun:
    mails, result = letters(count), ProductRun(messages=count)
    with tempfile.TemporaryDirectory() as folder:
        async with running_sim(GeneratedMailbox(20, 1, OWNER)) as gmail, running_model() as model:
            _teach(model)
            async with open_app(_settings(Path(folder), model)) as app:
                grant = StaticGrant(email=gmail.email, api_base=gmail.url, access_token=gmail.token)
                account, _ = await app.take_in(grant, Actor("cli", "benchmark"))
                await _work(app, account)
                delivered = await _deliver(app, account, gmail, mails)
                await _read(app, result)
            _compare(gmail, delivered, result)
    return result


async def _deliver(app: App, account: Account, gmail: GmailSim, mails: list[tuple[bytes, str]]) -> dict[str, str]:
    """By the mailbox's id of each message, what the model would answer."""
    delivered: dict[str, str] = {}
    for start in range(0, len(mails), _AT_ONCE):
        for raw, answer in mails[start : start + _AT_ONCE]:
            delivered[gmail.control.deliver(raw)] = answer
        await _work(app, account)
    return delivered


async def _work(app: App, account: Account) -> None:
    await app.queue.enqueue(job_of(HISTORY_SYNC.name, account))
    async with open_worker(app, until_idle=True) as worker:
        await worker.run()


async def _read(app: App, result: ProductRun) -> None:
    counted = select(decisions.c.source, func.count()).group_by(decisions.c.source)
    spent = select(func.count(), func.coalesce(func.sum(model_calls.c.cost_microdollars), 0))
    by, (calls, micros) = await app.database.read(
        lambda tx: ({source: int(number) for source, number in tx.execute(counted)}, tx.execute(spent).one())
    )
    result.by, result.calls, result.spent_microdollars = by, int(calls), int(micros)


def _compare(gmail: GmailSim, delivered: dict[str, str], result: ProductRun) -> None:
    page: Any = gmail.control.truth_page(None, 1_000_000, hashes=False)
    wrong = Counter[str]()
    for message in page["messages"]:
        answer = delivered.get(message["id"])
        if answer is None:
            continue
        labels = {"INBOX", "UNREAD"}
        if answer in _EFFECTS:
            label, added = _EFFECTS[answer]
            labels = labels | {label} if added else labels - {label}
        if labels == set(message["label_ids"]):
            result.same_labels += 1
        else:
            wrong[f"{answer}: {' '.join(sorted(message['label_ids']))}"] += 1
    result.different = dict(wrong)


def judged(result: ProductRun) -> list[Verdict]:
    same = result.same_labels / result.messages
    return [
        Verdict("spend saved", 100 * result.saved, "at least 70 %", result.saved >= LEAST_SAVED, " %"),
        Verdict("the same labels in the end", 100 * same, "at least 99 %", same >= LEAST_SAME, " %"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=3_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logs.configure(level="warning", format="console")
    result = asyncio.run(run(options.messages))
    verdicts, console = judged(result), Console(width=140)
    console.print(
        f"{result.messages:,} messages, decided {result.by}, {result.calls:,} calls; different: {result.different}"
    )
    console.print(verdict_table(verdicts))
    if options.json:
        document: dict[str, Any] = {
            "machine": machine_facts("not used"),
            "run": vars(result) | {"saved": result.saved},
            "goals": [asdict(verdict) for verdict in verdicts],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
