"""What the backfill tools take: those that steer jobs, and those with which a connector works on them."""

from __future__ import annotations

from pydantic import Field

from postroom.contract.fields import Arguments, ConnectorType, Day, EndpointIdentity, JsonObject, Short
from postroom.domain.backfill import BackfillMode, BackfillStatus, Include
from postroom.domain.envelope import Text
from postroom.domain.limits import MOST_AUDIT_ENTRIES, MOST_BACKFILLS


class EstimateArguments(Arguments):
    connector_type: ConnectorType = Field(description="for example `gmail`")
    endpoint_identity: EndpointIdentity
    target_categories: list[Short] = Field(
        default_factory=list, max_length=20, description="finance, health, relationship, travel ...; none: all mail"
    )
    date_from: Day = Field(description="the first day, in UTC")
    date_to: Day = Field(description="the last day, included")
    rate_limit_per_hour: int | None = Field(None, strict=True, description="messages in any hour; default 100")
    daily_cost_cap_cents: int | None = Field(None, strict=True, description="spend a day; default 500")
    mode: BackfillMode = Field(BackfillMode.SELECTIVE, description="`background` waits while live mail does")
    includes: list[Include] = Field(default_factory=list, max_length=4, description="else left out")


class CreateArguments(EstimateArguments):
    auto_resume: bool | None = Field(
        None, strict=True, description="go on by itself when a new day brings a new budget"
    )
    estimate: JsonObject | None = Field(
        None, max_length=50, description="what backfill.estimate answered and the person agreed to"
    )


class JobArguments(Arguments):
    job_id: Short


class ListArguments(Arguments):
    connector_type: ConnectorType | None = None
    endpoint_identity: EndpointIdentity | None = None
    status: BackfillStatus | None = None
    limit: int = Field(100, ge=1, le=MOST_BACKFILLS, strict=True)


class SwitchArguments(Arguments):
    enabled: bool = Field(strict=True)


class NoArguments(Arguments):
    pass


class AuditArguments(Arguments):
    action: Short | None = Field(None, description="for example `backfill.pause`")
    subject_type: Short | None = None
    subject_id: Short | None = None
    before_id: Short | None = Field(None, description="only entries older than this one: `next` of the page before")
    limit: int = Field(50, ge=1, le=MOST_AUDIT_ENTRIES, strict=True)


class PollArguments(Arguments):
    connector_type: ConnectorType
    endpoint_identity: EndpointIdentity


class ProgressArguments(Arguments):
    job_id: Short
    fence: int = Field(strict=True, description="the number that backfill.poll gave")
    rows_processed: int = Field(strict=True, description="since the last report")
    rows_skipped: int = Field(strict=True, description="since the last report")
    cost_spent_cents: int = Field(0, strict=True, description="since the last report; your own guess, for information")
    cursor: JsonObject | None = Field(None, description="where to go on after a restart")
    status: BackfillStatus | None = Field(None, description="`completed` or `error` to end the job")
    error: Text | None = Field(None, max_length=10_000)
    report_seq: int | None = Field(None, strict=True, description="grows with each report; repeating one is harmless")
