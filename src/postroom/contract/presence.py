"""The tools with which a connector shows that it is alive and learns what it needs: tier policy, contacts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from postroom.contract.fields import ConnectorType, EndpointIdentity, JsonObject, Moment, Short
from postroom.contract.tool import Arguments, ConnectorReply, ToolSignature
from postroom.domain.envelope import Instant

Counter = Annotated[int, Field(ge=0, le=2**53)]


class HeartbeatArguments(Arguments):
    connector_type: ConnectorType = Field(description="for example `gmail`")
    endpoint_identity: EndpointIdentity
    instance: Short = Field(description="which process this is, in words for a person")
    version: Short
    status: Short = Field(description="how it is doing, for example `running`")
    counters: dict[Short, Counter] = Field(default_factory=dict, max_length=100)
    checkpoint: JsonObject | None = Field(None, max_length=20, description="how far its live pass has come")
    capabilities: list[Short] = Field(default_factory=list, max_length=20, description="for example `backfill`")
    policy_version: Short | None = Field(None, description="the version of the rules it has; they are sent if newer")
    categories_version: Short | None = Field(None, description="the same for the owner's categories")


class ExportArguments(Arguments):
    if_newer_than: Instant | None = Field(
        None, description="the `generated_at` that you have; nothing is sent if there is no newer one"
    )


class HeartbeatReply(ConnectorReply):
    policy: dict[str, Any] | None = None
    """The tier policy's `version`; with its `rules`, in the form that `parse_policy` reads, if they are newer."""
    categories: dict[str, Any] | None = None
    """The `version` of the owner's categories; with `definitions` and `corrections` if they are newer."""
    contacts_generated_at: Moment | None = None
    time: Moment | None = None


class ContactsReply(ConnectorReply):
    generated_at: Moment | None = None
    addresses: list[str] | None = None
    """Those whose mail is served first; None where nothing newer is there."""
    without_priority: list[str] = Field(default_factory=list)
    """Contacts whom the owner excluded from priority."""
    unchanged: bool = False


HEARTBEAT = ToolSignature("connector.heartbeat", HeartbeatArguments, HeartbeatReply)
CONTACTS_EXPORT = ToolSignature("contacts.export", ExportArguments, ContactsReply)
