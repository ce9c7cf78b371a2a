"""The tools for settings: what they are and where each comes from, changing those that the dashboard may change,
keys for the vault, a test call of the model, the owner's definitions (tier policy and categories), and searches saved
under a name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, Secret

from postroom.contract.tool import Arguments, EndpointIdentity, Moment, Reply, Short, ToolSignature
from postroom.domain.validation import shaped

LONGEST_VALUE = 2_000
LONGEST_DEFINITIONS = 100_000
_Version = Annotated[
    str, Field(max_length=100, description="as the listing has it; if it is outdated, nothing changes")
]
_Key = Annotated[
    str, Field(min_length=1, max_length=1_000), shaped(r"[!-~]*", "has spaces or characters that no key has")
]


def _revealed(secret: Secret[str] | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


class ListSettingsArguments(Arguments):
    pass


class ChangeSettingsArguments(Arguments):
    version: _Version
    values: dict[str, Annotated[str, Field(max_length=LONGEST_VALUE)]] = Field(
        min_length=1,
        max_length=50,
        description="texts by key, such as model.name; an empty text goes back to what holds without the dashboard",
    )


class StoreSecretArguments(Arguments):
    name: Literal["model.api_key", "discord.bot_token"]
    secret: Annotated[Secret[_Key] | None, PlainSerializer(_revealed, when_used="json")] = Field(
        None, description="goes into the vault and is never shown again; left out: remove it from there"
    )


class CheckModelArguments(Arguments):
    pass


class ReplacePolicyArguments(Arguments):
    version: _Version
    rules: list[dict[str, Any]] = Field(
        max_length=500, description="all rules, in order, as `postroom policy show --json` prints them"
    )


class DefineCategoriesArguments(Arguments):
    version: _Version
    definitions: str = Field(
        max_length=LONGEST_DEFINITIONS, description="the whole text of categories.toml; empty: only what is shipped"
    )


class SettingReply(Reply):
    key: str
    value: str
    """A secret is never shown."""
    source: Literal["environment", "dashboard", "file", "default"]
    variable: str | None
    """The variable that fixes it."""
    default: str
    help: str
    needs_restart: bool
    """It was changed since this process started, which goes on with the old value."""


class SecretReply(Reply):
    name: str
    place: Literal["environment", "file", "vault", "none"]
    variable: str | None


class SettingsReply(Reply):
    version: str
    settings: list[SettingReply]
    """Those that the dashboard may change."""
    secrets: list[SecretReply]


class ChangedSettingsReply(Reply):
    version: str
    changed: list[str]
    """Empty: everything was so already."""
    need_restart: list[str]
    """Of all settings, those that wait for a restart; the others hold at once, in other processes within seconds."""


class CheckFinding(Reply):
    verdict: Literal["ok", "warning", "failed"]
    message: str
    remedy: str


class ModelCheckReply(Reply):
    works: bool
    price: str | None
    """Of a million tokens in and out; null where it is unknown."""
    findings: list[CheckFinding]


class PolicyReply(Reply):
    version: str
    rules: int
    """In force."""


class DefinedCategoriesReply(Reply):
    version: str
    categories: list[str]


LIST_SETTINGS = ToolSignature("settings.list", ListSettingsArguments, SettingsReply)
CHANGE_SETTINGS = ToolSignature("settings.change", ChangeSettingsArguments, ChangedSettingsReply)
STORE_SECRET = ToolSignature("settings.secret", StoreSecretArguments, SecretReply)
CHECK_MODEL = ToolSignature("model.check", CheckModelArguments, ModelCheckReply)
REPLACE_POLICY = ToolSignature("policy.replace", ReplacePolicyArguments, PolicyReply)
DEFINE_CATEGORIES = ToolSignature("categories.define", DefineCategoriesArguments, DefinedCategoriesReply)


LONGEST_NAME = 60


class SearchNameArguments(Arguments):
    name: Short = Field(max_length=LONGEST_NAME, description="the search's name; upper and lower case are the same")


class SaveSearchArguments(SearchNameArguments):
    query: str = Field(min_length=1, max_length=1_000, description="as in the search field")
    endpoint_identity: EndpointIdentity | None = Field(None, description="search only this mailbox; unset: all")


class ListSearchesArguments(Arguments):
    pass


class SavedSearchReply(Reply):
    name: str
    query: str
    mailbox: str | None
    saved_at: Moment


class SavedSearchesReply(Reply):
    searches: list[SavedSearchReply]
    """By name."""


SAVE_SEARCH = ToolSignature("searches.save", SaveSearchArguments, SavedSearchReply)
LIST_SEARCHES = ToolSignature("searches.list", ListSearchesArguments, SavedSearchesReply)
REMOVE_SEARCH = ToolSignature("searches.remove", SearchNameArguments, SavedSearchReply)
