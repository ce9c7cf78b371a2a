"""Scopes as people name them and as the tables have them: an account is its address to the one, its id to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from postroom.accounts.store import get_account, list_accounts
from postroom.db import Tx
from postroom.triage.rules.model import RuleDraft, Scope, ScopeKind
from postroom.triage.rules.rows import StoredRule


def resolved(tx: Tx, scope: Scope) -> Scope:
    """With the account's id, for the table."""
    if scope.kind is not ScopeKind.ACCOUNT or "@" not in scope.ref:
        return scope
    return Scope(ScopeKind.ACCOUNT, get_account(tx, scope.ref).id)


def account_addresses(tx: Tx) -> dict[str, str]:
    """Of all accounts by their ids, of the removed ones too: a rule may still name one."""
    return {account.id: account.email for account in list_accounts(tx, with_removed=True)}


def named(scope: Scope, addresses: Mapping[str, str]) -> Scope:
    """With the account's address, for people."""
    if scope.kind is not ScopeKind.ACCOUNT:
        return scope
    return Scope(ScopeKind.ACCOUNT, addresses.get(scope.ref, scope.ref))


def draft_named(draft: RuleDraft, addresses: Mapping[str, str]) -> RuleDraft:
    return replace(draft, scope=named(draft.scope, addresses))


def rule_named(rule: StoredRule, addresses: Mapping[str, str]) -> StoredRule:
    if rule.draft is None:
        return rule
    draft = draft_named(rule.draft, addresses)
    return replace(rule, draft=draft, scope=draft.scope)
