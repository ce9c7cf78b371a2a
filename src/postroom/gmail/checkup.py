"""A close look at one account: name, network, certificate, clock, service, login, scope and quota, told apart.

The Gmail client repeats and hides what goes wrong now and then; a check-up asks once and says what it saw.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import httpx2

from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, NotAllowed, PostroomError
from postroom.domain.findings import Check, Finding, Verdict, first_failure
from postroom.gmail.grants import OAuthGrant, StoredGrant
from postroom.gmail.ports import Credentials
from postroom.gmail.reach import check_reach, explain, http_client
from postroom.gmail.scope import shortage
from postroom.gmail.skew import complaint, skew_of

_PROFILE = "/gmail/v1/users/me/profile"
_RATE_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "dailyLimitExceeded"})
_SCOPE_REASONS = frozenset({"insufficientPermissions", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"})


@dataclass(frozen=True)
class ProfileAnswer:
    """What the server said to a call for the profile, taken apart and not yet judged."""

    status: int
    content_type: str
    email: str | None = None
    reason: str = ""
    message: str = ""
    retry_after: str = ""
    skew: timedelta | None = None


async def examine(grant: StoredGrant, credentials: Credentials, clock: Clock) -> list[Finding]:
    """Every finding about the account, up to the first failure that makes the rest unknowable."""
    findings: list[Finding] = []
    for url in _servers(grant):
        findings += await check_reach(url)
        if first_failure(findings):
            return findings
    try:
        answer = await _ask(grant, credentials, clock)
    except (Fatal, NotAllowed) as error:
        return [*findings, Finding(Check.AUTH, Verdict.FAILED, grant.email, error.message)]
    except PostroomError as error:
        return [*findings, Finding(Check.NETWORK, Verdict.FAILED, grant.email, error.message, "Try again.")]
    except httpx2.TransportError as error:
        kind, message, remedy = explain(error, urlsplit(grant.api_base).hostname or grant.api_base)
        return [*findings, Finding(kind, Verdict.FAILED, grant.api_base, message, remedy)]
    return [*findings, *judge(answer, grant)]


def _servers(grant: StoredGrant) -> list[str]:
    """The API, and the login server where it is another host."""
    urls = [grant.api_base, *([grant.token_uri] if isinstance(grant, OAuthGrant) else [])]
    return list({urlsplit(url).netloc: url for url in urls}.values())


async def _ask(grant: StoredGrant, credentials: Credentials, clock: Clock) -> ProfileAnswer:
    token = await credentials.access_token()
    answer = await ask_profile(grant.api_base, token, clock)
    if answer.status == 401 and _is_googles(answer):
        token = await credentials.access_token(rejected=token)
        answer = await ask_profile(grant.api_base, token, clock)
    return answer


async def ask_profile(api_base: str, token: str, clock: Clock) -> ProfileAnswer:
    async with http_client() as http:
        response = await http.get(api_base + _PROFILE, headers={"Authorization": f"Bearer {token}"})
    content = _object(response.content)
    error = content.get("error")
    details = error if isinstance(error, dict) else {}
    email = content.get("emailAddress")
    return ProfileAnswer(
        status=response.status_code,
        content_type=response.headers.get("content-type", "no content type").split(";")[0],
        email=email if isinstance(email, str) else None,
        reason=_reason(details),
        message=str(details.get("message", ""))[:300],
        retry_after=response.headers.get("retry-after", ""),
        skew=skew_of(response.headers, clock.now()),
    )


def judge(answer: ProfileAnswer, grant: StoredGrant) -> list[Finding]:
    """What the answer means, one finding each for clock, service, login, scope and quota."""
    host, email = urlsplit(grant.api_base).hostname or grant.api_base, grant.email
    findings = [_judge_clock(answer, host)]
    if answer.email is None and not _is_googles(answer):
        return [*findings, _not_gmail(answer, grant.api_base)]
    findings.append(Finding(Check.SERVICE, Verdict.OK, host, f"{host} answers like Gmail."))
    if answer.status == 401:
        message = f"Gmail refuses even a fresh token of {email}: access was withdrawn, or the app was disabled."
        remedy = f"Log in again with `postroom account add gmail --email {email} --client-secrets FILE`."
        return [*findings, Finding(Check.AUTH, Verdict.FAILED, email, message, remedy)]
    if answer.email is not None and answer.email.lower() != email:
        message = f"The login of {email} opens the mailbox of {answer.email} instead."
        remedy = f"Log in as {email}, or add the account with --email {answer.email}."
        return [*findings, Finding(Check.AUTH, Verdict.FAILED, email, message, remedy)]
    findings.append(Finding(Check.AUTH, Verdict.OK, email, f"The login of {email} is accepted."))
    findings.append(_judge_scope(answer, grant))
    if findings[-1].verdict is Verdict.OK:
        findings.append(_judge_quota(answer, email))
    return findings


def _judge_clock(answer: ProfileAnswer, host: str) -> Finding:
    if problem := complaint(answer.skew, host):
        return Finding(Check.CLOCK, Verdict.FAILED, "this machine", problem)
    if answer.skew is None:
        return Finding(Check.CLOCK, Verdict.WARNING, "this machine", f"{host} does not say what time it is.")
    return Finding(Check.CLOCK, Verdict.OK, "this machine", f"The clock agrees with that of {host}.")


def _judge_scope(answer: ProfileAnswer, grant: StoredGrant) -> Finding:
    if isinstance(grant, OAuthGrant) and (missing := shortage(grant.scopes, grant.email)):
        return Finding(Check.SCOPE, Verdict.FAILED, grant.email, missing)
    if answer.status == 403 and answer.reason in _SCOPE_REASONS:
        message = shortage(frozenset(), grant.email) or answer.message
        return Finding(Check.SCOPE, Verdict.FAILED, grant.email, message)
    return Finding(Check.SCOPE, Verdict.OK, grant.email, "The granted scope is enough.")


def _judge_quota(answer: ProfileAnswer, email: str) -> Finding:
    if answer.status == 200:
        return Finding(Check.QUOTA, Verdict.OK, email, "Gmail's quota has room.")
    if answer.status == 429 or answer.reason in _RATE_REASONS:
        wait = f" Gmail says to wait {answer.retry_after} seconds." if answer.retry_after else ""
        return Finding(
            Check.QUOTA,
            Verdict.FAILED,
            email,
            f"The quota of {email} is used up for now ({answer.reason or answer.status}: {answer.message}).{wait}",
            "Work goes on by itself when there is room. If this lasts, another program uses the same Google project.",
        )
    message = f"Gmail answers {answer.status} ({answer.reason}: {answer.message})."
    remedy = "Check that the Gmail API is enabled for the project in Google's console." if answer.status == 403 else ""
    return Finding(Check.SERVICE, Verdict.FAILED, email, message, remedy or "Try again in a few minutes.")


def _not_gmail(answer: ProfileAnswer, api_base: str) -> Finding:
    if answer.status >= 500:
        message, remedy = f"{api_base} is not able to answer now ({answer.status}).", "Try again in a few minutes."
    else:
        message = f"{api_base} is not Gmail's API: it answers {answer.status} with {answer.content_type[:60]}."
        remedy = "Leave --api-base out for Gmail itself; a proxy or captive portal can also be in the way."
    return Finding(Check.SERVICE, Verdict.FAILED, api_base, message, remedy)


def _is_googles(answer: ProfileAnswer) -> bool:
    """Google's refusals name a reason in a form that hardly anything else on the web uses."""
    return bool(answer.reason)


def _reason(details: dict[str, object]) -> str:
    match details.get("errors"):
        case [{"reason": str(reason)}, *_]:
            return reason[:60]
    match details.get("status"):
        case str(status) if re.fullmatch("[A-Z_]{2,40}", status):
            return status
    return ""


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
