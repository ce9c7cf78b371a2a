"""The owner's tools about senders: add and remove contacts, say whether their mail is served first, and say to which
category a sender's mail belongs.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool

from postroom.contract.tool import Arguments, EndpointIdentity, Moment, Reply, Short, ToolSignature

_Address = Annotated[str, Field(min_length=3, max_length=320, description="an e-mail address")]


class NewContactArguments(Arguments):
    address: _Address
    name: str = Field("", max_length=200)
    has_priority: StrictBool = Field(True, description="false: known, but its mail is not served first")
    endpoint_identity: EndpointIdentity | None = Field(
        None, description="a contact of this mailbox, also given to a connector bound to it"
    )


class ContactArguments(Arguments):
    address: _Address


class ContactPriorityArguments(Arguments):
    address: _Address
    has_priority: StrictBool = Field(description="whether its mail is served first")


class ContactReply(Reply):
    address: str
    name: str | None
    source: str
    """vcard, csv, sent or manual"""
    has_priority: bool
    added_at: Moment


ADD_CONTACT = ToolSignature("contacts.add", NewContactArguments, ContactReply)
REMOVE_CONTACT = ToolSignature("contacts.remove", ContactArguments, ContactReply)
SET_CONTACT_PRIORITY = ToolSignature("contacts.set_priority", ContactPriorityArguments, ContactReply)


_Sender = Annotated[str, Field(min_length=3, max_length=320, description="an e-mail address or a domain")]


class CategoryCorrectionArguments(Arguments):
    sender: _Sender
    category: Short = Field(description="the name of a category, or `none`")


class CorrectedSenderArguments(Arguments):
    sender: _Sender


class CategoryCorrectionReply(Reply):
    sender: str
    category: str
    created_by: str
    created_at: Moment


CORRECT_CATEGORY = ToolSignature("categories.correct", CategoryCorrectionArguments, CategoryCorrectionReply)
FORGET_CORRECTION = ToolSignature("categories.forget", CorrectedSenderArguments, CategoryCorrectionReply)
