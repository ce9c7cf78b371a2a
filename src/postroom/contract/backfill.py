"""The backfill tools: those that steer jobs, and those with which a connector works on them."""

from __future__ import annotations

from datetime import date
from typing import Any

from pydantic import Field

from postroom.contract.tool import (
    Arguments,
    ConnectorReply,
    ConnectorType,
    Day,
    EndpointIdentity,
    JsonObject,
    Moment,
    Reply,
    Short,
    ToolSignature,
)
from postroom.domain.envelope import Text
from postroom.domain.errors import Fatal
from postroom.domain.terms import BackfillMode, BackfillStatus, Include
from postroom.domain.validation import MOST_AUDIT_ENTRIES, MOST_BACKFILLS


class EstimateArguments(Arguments):
    connector_type: ConnectorType = Field(description="for example `gmail`")
    endpoint_identity: EndpointIdentity
    target_categories: list[Short] = Field(
        default_factory=list, max_length=20, description="finance, health, relationship, travel ...; none: all mail"
    )
    date_from: Day = Field(description="the first day, in UTC")
    date_to: Day = Field(description="the last day, included")
    category_from: dict[Short, Day] = Field(
        default_factory=dict, max_length=20, description="the first day of a category that begins later than date_from"
    )
    rate_limit_per_hour: int | None = Field(None, strict=True, description="messages in any hour; default 100")
    daily_cost_cap_cents: int | None = Field(None, strict=True, description="spend a day; default 500")
    mode: BackfillMode = Field(BackfillMode.SELECTIVE, description="`background` waits while live mail does")
    includes: list[Include] = Field(default_factory=list, max_length=4, description="else left out")
    uses_model: bool | None = Field(
        None, strict=True, description="false: rules decide alone, at no cost; default: if a model has a known price"
    )


class CreateArguments(EstimateArguments):
    auto_resume: bool | None = Field(
        None, strict=True, description="go on by itself when a new day brings a new budget"
    )
    estimate: JsonObject | None = Field(
        None, max_length=50, description="what backfill.estimate answered and the person agreed to"
    )


class JobArguments(Arguments):
    job_id: Short


class ChangeArguments(JobArguments):
    rate_limit_per_hour: int | None = Field(None, strict=True, description="messages in any hour; left out: as it is")
    daily_cost_cap_cents: int | None = Field(None, strict=True, description="spend a day; left out: as it is")


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
    cost_spent_cents: int = Field(
        0,
        strict=True,
        description="what you spent yourself since the last report; counts against the cap",
    )
    cursor: JsonObject | None = Field(None, description="where to go on after a restart")
    status: BackfillStatus | None = Field(None, description="`completed` or `error` to end the job")
    error: Text | None = Field(None, max_length=10_000)
    report_seq: int | None = Field(None, strict=True, description="grows with each report; repeating one is harmless")


class CreatedReply(Reply):
    job_id: str
    status: str


class StatusReply(Reply):
    status: str


class ChangedReply(Reply):
    status: str
    rate_limit_per_hour: int
    daily_cost_cap_cents: int


class JudgeAgainReply(Reply):
    messages: int
    """How many are judged again."""


class BackfillJobReply(Reply):
    """A job, without what only the Switchboard needs."""

    id: str
    connector_type: str
    endpoint_identity: str
    target_categories: list[str]
    date_from: date
    date_to: date
    category_from: dict[str, date]
    rate_limit_per_hour: int
    daily_cost_cap_cents: int
    status: str
    cursor: dict[str, Any] | None
    rows_processed: int
    rows_skipped: int
    cost_spent_cents: int
    error: str | None
    created_at: Moment
    started_at: Moment | None
    completed_at: Moment | None
    updated_at: Moment
    mode: str
    includes: list[str]
    status_reason: str | None
    spent_microdollars: int
    reported_cost_cents: int
    auto_resume: bool
    fence: int
    lease_expires_at: Moment | None
    estimate: dict[str, Any] | None
    consent_at: Moment | None
    consent_by: str | None
    uses_model: bool
    walked_at: Moment | None


class ListReply(Reply):
    jobs: list[BackfillJobReply]


class DaySpend(Reply):
    """In micro-dollars."""

    day: date
    reserved: int
    """By model calls under way."""
    settled: int
    reported: int
    """Spent by the connector itself, as it says."""


class WaitReply(Reply):
    """Why a job is not at work."""

    reason: str
    text: str
    until: Moment | None
    place: int | None
    """Among the waiting jobs of its mailbox."""


class JudgedReply(Reply):
    """How many messages were decided, and by whom."""

    by_rule: int
    learned: int
    by_model: int
    left_alone: int
    """What no rule decided and no model was asked about."""
    for_review: int


class ShowReply(Reply):
    job: BackfillJobReply
    today: DaySpend
    days: list[DaySpend]
    uncertain: int
    """Micro-dollars, part of what is settled: calls whose answer never came count at their most."""
    undecided: int
    """Messages that are in and wait to be decided."""
    admitted_last_hour: int
    taken_in: int
    """New messages, without those that were known."""
    never_judged: int
    """Of these, those that were given up; they can be tried again."""
    judged: JudgedReply
    waiting: WaitReply | None


class EstimatedDuration(Reply):
    seconds: int
    binds: str
    by_rate_s: int
    by_cost_cap_s: int
    by_quota_s: int


class EstimateReply(Reply):
    messages: int
    messages_full: int
    messages_asked: int
    """Of the full ones, those that no rule decides: the model is asked about them."""
    messages_metadata: int
    messages_left_out: int
    messages_known: int
    """Taken in before; they cost nothing."""
    messages_listed: int
    messages_margin: int
    counted_in: str
    is_exact: bool
    tokens_per_message: int
    cost_cents: int | None
    """None: no price is known, so rules decide alone."""
    cost_microdollars: int | None
    price: str | None
    uses_model: bool
    """False: rules decide alone, and what none decides is left as it is."""
    seconds: int
    binds: str
    duration: EstimatedDuration
    rate_limit_per_hour: int
    daily_cost_cap_cents: int
    retention: list[str]
    """How long what is taken in is kept, and when it is removed; a sentence for each kind of mail."""


class SwitchReply(Reply):
    backfill_enabled: bool
    environment: bool
    database: bool
    changed_at: Moment | None
    changed_by: str | None


class ActorReply(Reply):
    role: str
    name: str


class AuditEntryReply(Reply):
    id: str
    at: Moment
    actor: ActorReply
    action: str
    subject_type: str
    subject_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditReply(Reply):
    entries: list[AuditEntryReply]
    next: str | None


class JobParams(Reply):
    mode: str = "selective"
    target_categories: list[str] = Field(default_factory=list)
    includes: list[str] = Field(default_factory=list)
    date_from: date
    date_to: date
    category_from: dict[str, date] = Field(default_factory=dict)
    rate_limit_per_hour: int = 100
    daily_cost_cap_cents: int = 500


class LeasedBackfill(Reply):
    """A job that a connector works on."""

    job_id: str
    fence: int
    lease_s: float = 120.0
    params: JobParams
    cursor: dict[str, Any] | None = None


class BackfillPollReply(ConnectorReply):
    job_id: str | None = None
    fence: int | None = None
    lease_s: float = 120.0
    params: JobParams | None = None
    cursor: dict[str, Any] | None = None
    retry_after: float | None = None
    """Without a job: seconds until it makes sense to ask again."""

    @property
    def job(self) -> LeasedBackfill | None:
        if self.job_id is None:
            return None
        if self.fence is None or self.params is None:
            raise Fatal("The Switchboard handed out a backfill job without its fence or its terms.")
        return LeasedBackfill(
            job_id=self.job_id,
            fence=self.fence,
            lease_s=self.lease_s,
            params=self.params,
            cursor=self.cursor,
        )


class BackfillProgressReply(ConnectorReply):
    status: str
    """Authoritative: unless it is active, stop."""
    reason: str | None = None
    retry_after: float | None = None


CREATE = ToolSignature("create_backfill_job", CreateArguments, CreatedReply)
PAUSE = ToolSignature("backfill.pause", JobArguments, StatusReply)
CANCEL = ToolSignature("backfill.cancel", JobArguments, StatusReply)
RESUME = ToolSignature("backfill.resume", JobArguments, StatusReply)
STEERING = {"pause": PAUSE, "cancel": CANCEL, "resume": RESUME}
CHANGE = ToolSignature("backfill.change", ChangeArguments, ChangedReply)
JUDGE_AGAIN = ToolSignature("backfill.judge_again", JobArguments, JudgeAgainReply)
LIST = ToolSignature("backfill.list", ListArguments, ListReply)
SHOW = ToolSignature("backfill.show", JobArguments, ShowReply)
ESTIMATE = ToolSignature("backfill.estimate", EstimateArguments, EstimateReply)
SWITCH = ToolSignature("backfill.switch", SwitchArguments, SwitchReply)
SWITCH_STATE = ToolSignature("backfill.switch_state", NoArguments, SwitchReply)
AUDIT = ToolSignature("audit.list", AuditArguments, AuditReply)
POLL = ToolSignature("backfill.poll", PollArguments, BackfillPollReply)
PROGRESS = ToolSignature("backfill.progress", ProgressArguments, BackfillProgressReply)
