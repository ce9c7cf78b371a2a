"""How the owner logs in by browser: the first grant of a mailbox. `credentials.py` keeps it and renews it."""

from __future__ import annotations

from collections.abc import Callable

from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, NotAllowed
from postroom.mailboxes.browser_login import ClientSecrets, LoginTokens, TokenEndpoint, login_visit
from postroom.mailboxes.credentials import OAuthGrant
from postroom.mailboxes.gmail.methods import EVERYTHING, GOOGLE, missing_scope, scopes_to_request
from postroom.mailboxes.imap.autoconfig import MailServers
from postroom.mailboxes.imap.providers import SignIn
from postroom.telemetry import logs

LOGIN_TIMEOUT_S = 300.0


async def log_in(
    client: ClientSecrets,
    email: str,
    clock: Clock,
    *,
    show: Callable[[str], None],
    api_base: str = GOOGLE,
    full_access: bool = False,
    timeout_s: float = LOGIN_TIMEOUT_S,
) -> OAuthGrant:
    """Let the owner log in by browser; `show` gets the address to open. Nothing is stored."""
    async with login_visit(client, scopes_to_request(full_access=full_access), email) as login:
        show(login.url)
        code = await login.code(timeout_s)
    logs.learn_secrets([code, client.client_secret])  # tokens are learnt where they arrive
    endpoint = TokenEndpoint(client, email, clock)
    tokens = await endpoint.redeem(code, login.pkce.verifier, login.redirect_uri)
    return _first_grant(tokens, client, email, api_base, full_access)


IMAP_SCOPES = {
    SignIn.GOOGLE: frozenset({EVERYTHING}),
    SignIn.MICROSOFT: frozenset(
        {
            "https://outlook.office.com/IMAP.AccessAsUser.All",
            "https://outlook.office.com/SMTP.Send",
            "offline_access",
        }
    ),
}
_MICROSOFT = "https://login.microsoftonline.com/common/oauth2/v2.0"


def microsoft_client(client_id: str) -> ClientSecrets:
    """A public client, which has no secret."""
    return ClientSecrets(client_id, "", f"{_MICROSOFT}/authorize", f"{_MICROSOFT}/token", sign_in=SignIn.MICROSOFT)


async def log_in_to_imap(
    client: ClientSecrets,
    email: str,
    servers: MailServers,
    clock: Clock,
    *,
    show: Callable[[str], None],
    timeout_s: float = LOGIN_TIMEOUT_S,
) -> OAuthGrant:
    """Like `log_in`, for a mailbox that is reached by IMAP; the client says whose page is asked. Nothing is stored."""
    sign_in = client.sign_in or SignIn.GOOGLE
    wanted = IMAP_SCOPES[sign_in]
    async with login_visit(client, wanted, email) as login:
        show(login.url)
        code = await login.code(timeout_s)
    logs.learn_secrets([code, client.client_secret])
    tokens = await TokenEndpoint(client, email, clock, wanted).redeem(code, login.pkce.verifier, login.redirect_uri)
    if tokens.refresh_token is None:
        raise Fatal(f"{client.issuer} gave no refresh token, so the login of {email} would end within the hour.")
    return OAuthGrant(
        email=email,
        api_base=str(servers.address),
        access_token=tokens.access_token,
        expires_at=tokens.expires_at,
        refresh_token=tokens.refresh_token,
        scopes=tokens.scopes or wanted,
        client_id=client.client_id,
        client_secret=client.client_secret,
        auth_uri=client.auth_uri,
        token_uri=client.token_uri,
        sign_in=sign_in,
        submission=str(servers.submission or ""),
    )


def _first_grant(
    tokens: LoginTokens, client: ClientSecrets, email: str, api_base: str, full_access: bool
) -> OAuthGrant:
    if tokens.refresh_token is None:
        raise Fatal(
            f"Google gave no refresh token, so the login of {email} would end within the hour. Withdraw the app's "
            "access at https://myaccount.google.com/permissions and log in again."
        )
    if tokens.scopes and (missing := missing_scope(tokens.scopes, email, full_access=full_access)):
        raise NotAllowed(missing)
    return OAuthGrant(
        email=email,
        api_base=api_base,
        access_token=tokens.access_token,
        expires_at=tokens.expires_at,
        refresh_token=tokens.refresh_token,
        scopes=tokens.scopes or scopes_to_request(full_access=full_access),
        client_id=client.client_id,
        client_secret=client.client_secret,
        auth_uri=client.auth_uri,
        token_uri=client.token_uri,
    )
