"""The on-demand pass (BF-17): what the user's question finds in the mailbox, taken in at once. At most 50 messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from postroom.connectors.gmail.intake import Handled, Intake
from postroom.connectors.gmail.mail import SourceMail, from_gmail, newest_first
from postroom.connectors.instruments import Fate, PassName
from postroom.connectors.switchboard import ON_DEMAND, Switchboard, TroubledMail
from postroom.domain.errors import BadInput, PostroomError
from postroom.gmail.client import GmailClient
from postroom.gmail.fetching import Failed, Got
from postroom.gmail.resources import Format

MOST_RESULTS = 50
LONGEST_QUERY = 1_000


@dataclass
class OnDemandOutcome:
    """What was found, newest first, and what became of it."""

    gmail_ids: list[str] = field(default_factory=list)
    ingested: int = 0
    duplicates: int = 0
    skipped: int = 0
    failed: int = 0


class OnDemandPass:
    def __init__(self, switchboard: Switchboard, client: GmailClient, intake: Intake) -> None:
        self._switchboard = switchboard
        self._client = client
        self._intake = intake

    async def run(self, query: str, max_results: int = MOST_RESULTS) -> OnDemandOutcome:
        """`query` is in Gmail's search language."""
        if not query.strip() or len(query) > LONGEST_QUERY:
            raise BadInput("query", f"has 1 to {LONGEST_QUERY} characters")
        if not 1 <= max_results <= MOST_RESULTS:
            raise BadInput("max_results", f"{max_results} is not between 1 and {MOST_RESULTS}")
        outcome = OnDemandOutcome()
        mails = await self._found(query, max_results, outcome)
        handled = await self._intake.take(mails, PassName.ON_DEMAND)
        await self._tell([each for each in handled if each.error is not None])
        for each in handled:
            outcome.gmail_ids.append(each.mail.id)
            match each.fate:
                case Fate.FULL | Fate.METADATA:
                    outcome.ingested += 1
                case Fate.DUPLICATE:
                    outcome.duplicates += 1
                case None:
                    outcome.failed += 1
                case _:
                    outcome.skipped += 1
        return outcome

    async def _tell(self, failed: Sequence[Handled]) -> None:
        troubled = [
            TroubledMail(each.mail.id, each.mail.archived is not None, each.error.message if each.error else "")
            for each in failed
        ]
        await self._switchboard.report_trouble(ON_DEMAND, troubled)

    async def _found(self, query: str, most: int, outcome: OnDemandOutcome) -> list[SourceMail]:
        ids: list[str] = []
        async for page in self._client.list_messages(query, page_size=most):
            ids += [message.id for message in page.messages]
            if len(ids) >= most:
                break
        mails: list[SourceMail] = []
        errors: list[PostroomError] = []
        for answer in await self._client.get_messages(ids[:most], Format.METADATA):
            if isinstance(answer, Got):
                mails.append(from_gmail(answer.message))
            elif isinstance(answer, Failed):
                errors.append(answer.error)
        if errors and not mails:
            raise errors[0]
        outcome.failed = len(errors)
        return newest_first(mail for mail in mails if not mail.is_unfinished)
