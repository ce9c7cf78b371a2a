"""Whatever is sent to whichever method, the answer is a refusal or what the discovery document promises."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import quote, urlencode

from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.domain.clock import ManualClock
from postroom.sim.gmail import oauth
from postroom.sim.gmail.api_errors import ApiError
from postroom.sim.gmail.call import ApiRoute, MailboxState
from postroom.sim.gmail.faults import Faults
from postroom.sim.gmail.gateway import ROUTES, Gateway, QuotaLimits, QuotaMeter
from postroom.sim.gmail.oauth import Grants
from postroom.sim.serving import SimRequest
from tests.support import google_client
from tests.support.mail import encoded, letter, mailbox

SOURCE = mailbox(5, Label_7="Bills")
MESSAGE_IDS = [SOURCE.summary(index).id for index in range(SOURCE.count())]
RAW = encoded(letter())

IDS = st.sampled_from([*MESSAGE_IDS, "INBOX", "Label_7", "r7919325000317"]) | st.text(min_size=1, max_size=8)
LABELS = st.sampled_from(["INBOX", "SENT", "Label_7", "TRASH", "Label_99"])
TEXTS = st.sampled_from(["true", "raw", "full", "metadata", "1", "500", "10000005", "in:anywhere", "from:ann OR (", ""])
QUERIES = st.dictionaries(
    st.sampled_from(
        [
            "q",
            "format",
            "maxResults",
            "pageToken",
            "labelIds",
            "includeSpamTrash",
            "startHistoryId",
            "historyTypes",
            "labelId",
            "metadataHeaders",
            "internalDateSource",
            "uploadType",
        ]
    ),
    TEXTS | LABELS | st.text(max_size=10),
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.fixed_dictionaries(
    {}, optional={"raw": st.just(RAW) | JUNK, "threadId": IDS | JUNK, "labelIds": st.lists(LABELS) | JUNK}
)
FIELDS = {
    "ids": st.lists(IDS) | JUNK,
    "addLabelIds": st.lists(LABELS) | JUNK,
    "removeLabelIds": st.lists(LABELS) | JUNK,
    "name": st.text(max_size=5) | JUNK,
    "color": JUNK,
    "labelListVisibility": st.sampled_from(["labelHide", "no"]) | JUNK,
    "topicName": st.just("projects/p/topics/t") | JUNK,
    "id": IDS | JUNK,
    "message": MESSAGES | JUNK,
    "raw": st.just(RAW) | JUNK,
    "threadId": IDS | JUNK,
    "labelIds": st.lists(LABELS) | JUNK,
}
BODIES = st.fixed_dictionaries({}, optional=FIELDS) | JUNK


def _request(route: ApiRoute, ids: tuple[str, str], query: dict[str, str], body: object, is_upload: bool) -> SimRequest:
    path = route.template
    for part in ids:
        path = path.replace("*", quote(part, safe=""), 1)
    takes_uploads = route.verb == "POST" and route.template in (
        "messages",
        "messages/import",
        "messages/send",
        "drafts",
    )
    prefix = "/upload" if is_upload and takes_uploads else ""
    return SimRequest(
        verb=route.verb,
        path=f"{prefix}/gmail/v1/users/me/{path}",
        query_string=urlencode(query),
        body=json.dumps(body).encode(),
    )


REQUESTS = st.builds(_request, st.sampled_from(ROUTES), st.tuples(IDS, IDS), QUERIES, BODIES, st.booleans())


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(REQUESTS, max_size=6))
def test_no_call_can_break_the_stand_in(requests: list[SimRequest]) -> None:
    clock = ManualClock()
    grants = Grants(clock)
    headers = {"authorization": f"Bearer {grants.allow(oauth.ALL_SCOPES)}"}
    gateway = Gateway(MailboxState(SOURCE, clock), grants, QuotaMeter(QuotaLimits(), clock), Faults())
    for request in requests:
        try:
            reply = gateway.carry_out(gateway.admit(replace(request, headers=headers)))
        except ApiError as error:
            json.loads(error.body())
        else:
            google_client.check_response(request.verb, request.path, reply.status, reply.body)
        assert len(list(gateway.box.store.walk(None, None, None))) == gateway.box.store.count
