"""Examines one account: DNS, network, certificate, clock, service, login, scope and quota, one finding each.

It asks once, without waiting for the limiter and without retries, and reports what it found.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import httpx2

from postroom.domain.checkups import Check, CheckVerdict, Finding, first_failure
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, NotAllowed, PostroomError
from postroom.mailboxes.credentials import OAuthGrant, StoredGrant
from postroom.mailboxes.errors import Gone, LoginNeeded, MailboxThrottled, NotGmail, PermissionMissing
from postroom.mailboxes.gmail.error_mapping import CallDescription, GmailAnswer, error_of, not_gmail
from postroom.mailboxes.gmail.methods import GmailMethod, login_command, missing_scope
from postroom.mailboxes.ports import Credentials
from postroom.mailboxes.reachability import check_reach, explain, http_client, skew_of, skew_problem

_PROFILE = "/gmail/v1/users/me/profile"
_ASKED = CallDescription(GmailMethod.GET_PROFILE)


@dataclass(frozen=True)
class ProfileAnswer:
    """What a call for the profile brought: the address or the refusal, and the server's idea of time."""

    email: str | None
    refusal: PostroomError | None
    skew: timedelta | None


async def examine(grant: StoredGrant, credentials: Credentials, clock: Clock) -> list[Finding]:
    """All findings about the account, up to the first failure that makes further checks pointless."""
    findings: list[Finding] = []
    for url in _servers(grant):
        findings += await check_reach(url)
        if first_failure(findings):
            return findings
    try:
        seen = await _look(grant, credentials, clock)
    except (Fatal, NotAllowed) as error:
        return [*findings, Finding(Check.AUTH, CheckVerdict.FAILED, grant.email, error.message)]
    except PostroomError as error:
        return [*findings, Finding(Check.NETWORK, CheckVerdict.FAILED, grant.email, error.message, "Try again.")]
    except httpx2.TransportError as error:
        kind, message, remedy = explain(error, _host(grant))
        return [*findings, Finding(kind, CheckVerdict.FAILED, grant.api_base, message, remedy)]
    return [*findings, *judge_account(seen, grant)]


def _servers(grant: StoredGrant) -> list[str]:
    """The API, and the login server where it is another host."""
    urls = [grant.api_base, *([grant.token_uri] if isinstance(grant, OAuthGrant) else [])]
    return list({urlsplit(url).netloc: url for url in urls}.values())


def _host(grant: StoredGrant) -> str:
    return urlsplit(grant.api_base).hostname or grant.api_base


async def _look(grant: StoredGrant, credentials: Credentials, clock: Clock) -> ProfileAnswer:
    token = await credentials.access_token()
    seen = await ask_profile(grant.api_base, token, clock)
    if isinstance(seen.refusal, LoginNeeded):
        token = await credentials.access_token(rejected=token)
        seen = await ask_profile(grant.api_base, token, clock)
    return seen


async def ask_profile(api_base: str, token: str, clock: Clock) -> ProfileAnswer:
    async with http_client() as http:
        response = await http.get(api_base + _PROFILE, headers={"Authorization": f"Bearer {token}"})
    answer, now = GmailAnswer(response.status_code, response.headers, response.content), clock.now()
    skew = skew_of(response.headers, now)
    if not answer.is_success:
        return ProfileAnswer(None, error_of(answer, _ASKED, now), skew)
    email = _email(answer)
    kind = response.headers.get("content-type", "no content type").partition(";")[0][:60]
    return ProfileAnswer(email, not_gmail(f"status {answer.status}, {kind}") if email is None else None, skew)


def judge_account(seen: ProfileAnswer, grant: StoredGrant) -> list[Finding]:
    """The findings about clock, service, login, scope and quota."""
    findings = [_judge_clock(seen, _host(grant))]
    if (service := _judge_service(seen, grant)).verdict is CheckVerdict.FAILED:
        return [*findings, service]
    if (auth := _judge_login(seen, grant)).verdict is CheckVerdict.FAILED:
        return [*findings, service, auth]
    if (scope := _judge_scope(seen, grant)).verdict is CheckVerdict.FAILED:
        return [*findings, service, auth, scope]
    return [*findings, service, auth, scope, _judge_quota(seen, grant.email)]


def _judge_clock(seen: ProfileAnswer, host: str) -> Finding:
    if problem := skew_problem(seen.skew, host):
        return Finding(Check.CLOCK, CheckVerdict.FAILED, "this machine", problem)
    if seen.skew is None:
        return Finding(Check.CLOCK, CheckVerdict.WARNING, "this machine", f"{host} does not say what time it is.")
    return Finding(Check.CLOCK, CheckVerdict.OK, "this machine", f"The clock agrees with that of {host}.")


def _judge_service(seen: ProfileAnswer, grant: StoredGrant) -> Finding:
    match seen.refusal:
        case NotGmail():
            return Finding(Check.SERVICE, CheckVerdict.FAILED, grant.api_base, seen.refusal.message)
        case Gone():
            problem = not_gmail("status 404 for the profile, which every mailbox has").message
            return Finding(Check.SERVICE, CheckVerdict.FAILED, grant.api_base, problem)
        case PermissionMissing(scope=None):
            return Finding(Check.SERVICE, CheckVerdict.FAILED, grant.email, seen.refusal.message)
        case None | MailboxThrottled() | LoginNeeded() | PermissionMissing():
            return Finding(Check.SERVICE, CheckVerdict.OK, grant.api_base, f"{_host(grant)} answers like Gmail.")
        case refusal:
            remedy = "Try again in a few minutes."
            return Finding(Check.SERVICE, CheckVerdict.FAILED, grant.api_base, f"{refusal.message}.", remedy)


def _judge_login(seen: ProfileAnswer, grant: StoredGrant) -> Finding:
    email = grant.email
    if isinstance(seen.refusal, LoginNeeded):
        message = f"Gmail refuses even a fresh token of {email}: access was withdrawn, or the app was disabled."
        scopes = grant.scopes if isinstance(grant, OAuthGrant) else frozenset[str]()
        remedy = f"Log in again with {login_command(email, scopes)}."
        return Finding(Check.AUTH, CheckVerdict.FAILED, email, message, remedy)
    if seen.email is not None and seen.email.lower() != email:
        message = f"The login of {email} opens the mailbox of {seen.email} instead."
        remedy = f"Log in as {email}, or add the account with --email {seen.email}."
        return Finding(Check.AUTH, CheckVerdict.FAILED, email, message, remedy)
    return Finding(Check.AUTH, CheckVerdict.OK, email, f"The login of {email} is accepted.")


def _judge_scope(seen: ProfileAnswer, grant: StoredGrant) -> Finding:
    granted = grant.scopes if isinstance(grant, OAuthGrant) else None
    if isinstance(seen.refusal, PermissionMissing):
        granted = granted or frozenset()
    missing = None if granted is None else missing_scope(granted, grant.email)
    if missing is None and isinstance(seen.refusal, PermissionMissing):
        missing = seen.refusal.message
    if missing is not None:
        return Finding(Check.SCOPE, CheckVerdict.FAILED, grant.email, missing)
    return Finding(Check.SCOPE, CheckVerdict.OK, grant.email, "The granted scope is enough.")


def _judge_quota(seen: ProfileAnswer, email: str) -> Finding:
    if isinstance(seen.refusal, MailboxThrottled):
        message = f"The quota of {email} is used up for now. {seen.refusal.message}."
        remedy = "Work goes on by itself when there is room; if this lasts, another program uses the same project."
        return Finding(Check.QUOTA, CheckVerdict.FAILED, email, message, remedy)
    return Finding(Check.QUOTA, CheckVerdict.OK, email, "Gmail's quota has room.")


def _email(answer: GmailAnswer) -> str | None:
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    email = value.get("emailAddress") if isinstance(value, dict) else None
    return email if isinstance(email, str) else None
