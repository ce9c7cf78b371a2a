"""Ask about your mail: a question, and the model's answer in sentences that quote messages.

Nothing is asked before the form is sent, because each question costs money.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from postroom.contract import agent as contract
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.forms import Form
from postroom.dashboard.mail.routes import message_path
from postroom.dashboard.mail.search import mail_accounts
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.triage.asking import LONGEST_QUESTION

SECTION = "ask"
pages = pages_router()
api = api_router("ask")


@pages.get("/ask")
async def ask_page(here: Here, question: Annotated[str, Query(max_length=1_000)] = "") -> Response:
    """`question` is what the form begins with."""
    return await _page(here, Form.filled(question=question[:LONGEST_QUESTION]), None)


@pages.post("/ask")
async def submit_question(here: Here) -> Response:
    form = await here.form()
    wanted = {
        "question": form["question"],
        "endpoint_identity": form.optional("account"),
        "source": form.checked("source"),
    }
    try:
        reply = await here.call(contract.ASK, wanted)
    except BadInput as error:
        return await _page(here, form.refused(error), None, 422)
    return await _page(here, form, reply)


@api.post("")
@permits(Permission.ASK, keeps_to_mailbox=True)
async def ask(here: Here, wanted: contract.AskArguments) -> contract.AskReply:
    """Answer a question about archived mail, in sentences that quote messages. Costs one call of the model."""
    return await here.call(contract.ASK, wanted)


async def _page(here: RequestContext, form: Form, reply: contract.AskReply | None, status: int = 200) -> Response:
    accounts = await mail_accounts(here.services.shared)
    return await here.page(
        "mail/ask.html",
        SECTION,
        status,
        form=form,
        reply=reply,
        accounts=accounts,
        has_model=here.app.settings.model.provider is not None,
        longest=LONGEST_QUESTION,
        address_of=message_path,
    )
