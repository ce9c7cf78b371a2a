"""The owner's tools for categories: say where mail from a sender belongs, and take that back."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from postroom.contract.fields import Moment, Short
from postroom.contract.tool import Arguments, Reply, ToolSignature

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
