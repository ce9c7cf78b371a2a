"""The tools for the installation itself: tokens, mailboxes, the model's kill switch, and jobs of the queue."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PlainSerializer, Secret, StrictBool

from postroom.contract.fields import Id, Moment
from postroom.contract.tool import Arguments, Reply, ToolSignature
from postroom.domain.roles import Permission, Role

_AccessToken = Annotated[str, Field(min_length=1, max_length=10_000, pattern=r"^[!-~]+$")]


def _revealed(secret: Secret[str]) -> str:
    return secret.get_secret_value()


class NewTokenArguments(Arguments):
    role: Role
    name: str = Field(min_length=1, max_length=100, description="appears in the audit log")
    expires_days: int | None = Field(None, ge=1, le=3_650, description="unset: never, or when its maker expires")
    identity: str | None = Field(None, max_length=320, description="valid for this mailbox only")
    permissions: list[Permission] | None = Field(
        None, max_length=20, description="unset: all of the role except `approve` and `tokens`"
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


class ModelSwitchArguments(Arguments):
    enabled: StrictBool


class QueuedJobArguments(Arguments):
    job: Id


class JobTypeArguments(Arguments):
    type: str = Field(max_length=100, description="the job type, for example classify")


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


class ModelSwitchReply(Reply):
    enabled: bool
    changed_at: Moment | None
    changed_by: str | None


class JobReply(Reply):
    job: str


class RetriedJobs(Reply):
    jobs: int


CREATE_TOKEN = ToolSignature("tokens.create", NewTokenArguments, MadeTokenReply)
REVOKE_TOKEN = ToolSignature("tokens.revoke", TokenArguments, RevokedTokenReply)
REVOKE_ALL_TOKENS = ToolSignature("tokens.revoke_all", AllTokensArguments, RevokedTokens)
ADD_ACCOUNT = ToolSignature("accounts.add", AccountArguments, AccountReply)
SWITCH_MODEL = ToolSignature("model.switch", ModelSwitchArguments, ModelSwitchReply)
RETRY_JOB = ToolSignature("jobs.retry", QueuedJobArguments, JobReply)
CANCEL_JOB = ToolSignature("jobs.cancel", QueuedJobArguments, JobReply)
RETRY_FAILED_JOBS = ToolSignature("jobs.retry_failed", JobTypeArguments, RetriedJobs)
