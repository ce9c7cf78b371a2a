"""The tools for the installation itself: tokens, mailboxes, the model's kill switch, jobs of the queue, and imports
of uploaded files.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, Secret, StrictBool

from postroom.contract.tool import Arguments, EndpointIdentity, Id, Moment, Reply, ToolSignature
from postroom.domain.roles import Permission, Role
from postroom.domain.validation import MOST_CEILING_CENTS, shaped

_AccessToken = Annotated[
    str, Field(min_length=1, max_length=10_000), shaped(r"[!-~]*", "has spaces or characters that no token has")
]


def _revealed(secret: Secret[str]) -> str:
    return secret.get_secret_value()


class NewTokenArguments(Arguments):
    role: Role
    name: str = Field(min_length=1, max_length=100, description="appears in the audit log")
    expires_days: int | None = Field(None, ge=1, le=3_650, description="unset: never, or when its maker expires")
    identity: str | None = Field(None, max_length=320, description="valid for this mailbox only")
    permissions: list[Permission] | None = Field(
        None, max_length=20, description="unset: all of the role except `approve`, `tokens` and `undo`"
    )


class TokenArguments(Arguments):
    id: Id


class AllTokensArguments(Arguments):
    pass


class AccountArguments(Arguments):
    email: str = Field(min_length=3, max_length=320, description="the mailbox's address; the login must be for it")
    api_base: str = Field(
        max_length=2_000, description="a server that speaks Gmail's API, such as `postroom sim gmail`"
    )
    access_token: Annotated[Secret[_AccessToken], PlainSerializer(_revealed, when_used="json")]


class MailboxArguments(Arguments):
    endpoint_identity: EndpointIdentity


class ModelSwitchArguments(Arguments):
    enabled: StrictBool


class QueuedJobArguments(Arguments):
    job: Id


MOST_JOBS_AT_ONCE = 200


class QueuedJobsArguments(Arguments):
    jobs: list[Id] = Field(min_length=1, max_length=MOST_JOBS_AT_ONCE)


class JobTypeArguments(Arguments):
    type: str = Field(max_length=100, description="the job type, for example classify")


class CeilingArguments(Arguments):
    cents: int | None = Field(
        None, ge=0, le=MOST_CEILING_CENTS, strict=True, description="the new ceiling of a day; left out: only show it"
    )


class ChecklistArguments(Arguments):
    step: Literal["checklist", "model"] = Field(description="all of it, or only its step about a model")
    shown: StrictBool = Field(description="false: dismissed; true: shown again")


class ChecklistReply(Reply):
    step: str
    shown: bool


class TokenReply(Reply):
    id: str
    role: Role
    name: str
    endpoint_identity: str | None
    state: str
    """good, expired or revoked"""
    created_at: Moment
    expires_at: Moment | None
    last_used_at: Moment | None
    permissions: list[str]
    made_by: str | None
    """The id of the token that made it; null if the owner did."""


class MadeTokenReply(Reply):
    token: str = Field(description="shown once")
    stored: TokenReply


class RevokedTokenReply(Reply):
    stored: TokenReply
    made: int
    """How many tokens that it made were revoked with it."""


class RevokedTokens(Reply):
    tokens: int


class AccountReply(Reply):
    id: str
    email: str
    remarks: list[str]
    """What is unusual about it."""


class SyncedLabelsReply(Reply):
    labels: int
    added: int
    renamed: list[tuple[str, str]]
    """Old name, new name."""
    deleted: list[str]
    disabled_rules: list[str]
    """Rules that are off now for this mailbox, because a label that they use was deleted."""
    changed_rules: list[str]
    """Rules that name a renamed label by its new name now."""
    guidance_to_look_at: list[str]
    """Guidance for the model whose text mentions a label that was renamed or deleted."""


class ModelSwitchReply(Reply):
    enabled: bool
    changed_at: Moment | None
    changed_by: str | None


class CeilingReply(Reply):
    ceiling_cents: int
    """The most that all model calls of a day may cost together."""
    backfill_share_cents: int
    """The part of it that backfill jobs may use."""
    spent_microdollars: int
    reserved_microdollars: int
    """By calls under way."""
    changed_at: Moment | None
    changed_by: str | None
    """None: the settings decide."""


class JobReply(Reply):
    job: str


class ChangedJobs(Reply):
    jobs: int
    left: dict[str, str]
    """Jobs that were left as they were, and why."""


class RetriedJobs(Reply):
    jobs: int
    """How many are queued again."""
    left: dict[str, str] = Field({}, description="by job: why there is nothing to try again")


CREATE_TOKEN = ToolSignature("tokens.create", NewTokenArguments, MadeTokenReply)
REVOKE_TOKEN = ToolSignature("tokens.revoke", TokenArguments, RevokedTokenReply)
REVOKE_ALL_TOKENS = ToolSignature("tokens.revoke_all", AllTokensArguments, RevokedTokens)
ADD_ACCOUNT = ToolSignature("accounts.add", AccountArguments, AccountReply)
SYNC_LABELS = ToolSignature("accounts.sync_labels", MailboxArguments, SyncedLabelsReply)
SET_CEILING = ToolSignature("model.ceiling", CeilingArguments, CeilingReply)
SHOW_CHECKLIST = ToolSignature("checklist.show", ChecklistArguments, ChecklistReply)
SWITCH_MODEL = ToolSignature("model.switch", ModelSwitchArguments, ModelSwitchReply)
RETRY_JOB = ToolSignature("jobs.retry", QueuedJobArguments, JobReply)
CANCEL_JOB = ToolSignature("jobs.cancel", QueuedJobArguments, JobReply)
RETRY_JOBS = ToolSignature("jobs.retry_many", QueuedJobsArguments, ChangedJobs)
CANCEL_JOBS = ToolSignature("jobs.cancel_many", QueuedJobsArguments, ChangedJobs)
RETRY_FAILED_JOBS = ToolSignature("jobs.retry_failed", JobTypeArguments, RetriedJobs)


class ImportsArguments(Arguments):
    limit: int = Field(20, ge=1, le=100)


class StartImportArguments(Arguments):
    upload: Id = Field(description="the id of an uploaded file")
    name: str = Field(max_length=255, description="what the file was called")
    endpoint_identity: str = Field(max_length=320, description="whose mail it is, by address")


class ImportArguments(Arguments):
    import_id: Id = Field(description="an id of the list")


class ImportReply(Reply):
    id: str
    state: str
    account: str
    format: str
    name: str
    """Of the file, as it was called; a path where a command started the import."""
    is_upload: bool
    requested_by: str
    created_at: Moment
    updated_at: Moment
    bytes_done: int
    bytes_total: int | None
    """None: not known before the end, as for a .zip."""
    found: int
    stored: int
    duplicates: int
    unreadable: int
    not_mail: int
    """Files that were skipped, since they are no messages."""
    seconds_left: float | None
    error: str | None


class ImportsReply(Reply):
    imports: list[ImportReply]


LIST_IMPORTS = ToolSignature("imports.list", ImportsArguments, ImportsReply)
START_IMPORT = ToolSignature("imports.start", StartImportArguments, ImportReply)
STOP_IMPORT = ToolSignature("imports.stop", ImportArguments, ImportReply)
RESUME_IMPORT = ToolSignature("imports.resume", ImportArguments, ImportReply)
FORGET_IMPORT = ToolSignature("imports.forget", ImportArguments, ImportReply)
