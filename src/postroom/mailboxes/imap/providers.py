"""Well-known providers: where their servers are, how to log in there, and what a person needs to know first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from postroom.domain.errors import BadInput
from postroom.mailboxes.imap.connection import Security, ServerAddress, server_address
from postroom.mailboxes.reachability import is_this_machine

_TLS_PORT = 993
_SUBMISSION_PORTS = {Security.TLS: 465, Security.STARTTLS: 587, Security.PLAIN: 25}
_SUBMISSION_SCHEMES = {Security.TLS: "smtps", Security.STARTTLS: "smtp+starttls", Security.PLAIN: "smtp"}


class SignIn(StrEnum):
    """Whose page a login by browser goes to."""

    GOOGLE = "google"
    MICROSOFT = "microsoft"

    @property
    def shown(self) -> str:
        return self.capitalize()


@dataclass(frozen=True, slots=True)
class SubmissionServer:
    """Where mail is handed in to be sent (RFC 6409)."""

    host: str
    port: int
    security: Security = Security.TLS

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_SUBMISSION_SCHEMES[self.security]}://{host}:{self.port}"


def submission_server(host: str, port: int | None = None, security: Security | None = None) -> SubmissionServer:
    """Raises BadInput unless it uses TLS or is on this machine. Without `security`, port 587 means STARTTLS, and
    any other port on this machine plain text."""
    if security is None:
        security = Security.STARTTLS if port == _SUBMISSION_PORTS[Security.STARTTLS] else Security.TLS
        if is_this_machine(host) and port not in _SUBMISSION_PORTS.values():
            security = Security.PLAIN
    chosen = _SUBMISSION_PORTS[security] if port is None else port
    try:
        checked = server_address(host, chosen, security)
    except BadInput as error:
        raise BadInput(f"smtp-{error.field}", error.problem) from None
    return SubmissionServer(checked.host, checked.port, security)


def submission_given(text: str) -> SubmissionServer:
    """As a person writes it: a host, or `host:port`. Raises BadInput."""
    host, colon, port = text.strip().rpartition(":")
    return submission_server(host, int(port)) if colon and port.isdecimal() else submission_server(text.strip())


def parse_submission(text: str) -> SubmissionServer | None:
    """As it was stored; None for an empty text."""
    if not text:
        return None
    scheme, _, rest = text.partition("://")
    security = next((each for each, name in _SUBMISSION_SCHEMES.items() if name == scheme), None)
    host, _, port = rest.rpartition(":")
    if security is None or not port.isdecimal():
        raise BadInput("smtp-host", f"{text!r} is not the address of a server that sends mail")
    return submission_server(host, int(port), security)


@dataclass(frozen=True, slots=True)
class ImapPreset:
    """A provider's servers, and what its owner has to know to log in."""

    key: str
    name: str
    domains: tuple[str, ...]
    address: ServerAddress
    submission: SubmissionServer
    hint: str
    """Which password to enter, in whole sentences."""
    sign_in: SignIn | None = None
    """Whose login by browser opens it."""
    takes_password: bool = True


def _tls(host: str) -> ServerAddress:
    return ServerAddress(host, _TLS_PORT)


def _submit(host: str, security: Security = Security.TLS) -> SubmissionServer:
    return SubmissionServer(host, _SUBMISSION_PORTS[security], security)


_GMX_HINT = (
    "First allow IMAP on the GMX site, under E-Mail > Settings > POP3 & IMAP. Then enter your usual password, or an "
    "app-specific one if you use two-factor authentication."
)

PRESETS = (
    ImapPreset(
        "fastmail",
        "Fastmail",
        ("fastmail.com", "fastmail.fm"),
        _tls("imap.fastmail.com"),
        _submit("smtp.fastmail.com"),
        "Enter an app password, which Fastmail makes under Settings > Privacy & Security > Manage app passwords. Your "
        "usual password is refused.",
    ),
    ImapPreset(
        "icloud",
        "iCloud",
        ("icloud.com", "me.com", "mac.com"),
        _tls("imap.mail.me.com"),
        _submit("smtp.mail.me.com", Security.STARTTLS),
        "Enter an app-specific password, which Apple makes at account.apple.com under Sign-In and Security. The "
        "password of your Apple Account is refused.",
    ),
    ImapPreset(
        "outlook",
        "Outlook.com",
        ("outlook.com", "hotmail.com", "live.com", "msn.com"),
        _tls("outlook.office365.com"),
        _submit("smtp-mail.outlook.com", Security.STARTTLS),
        "Microsoft takes no passwords here, only a login by browser. Run `postroom account add imap --oauth microsoft` "
        "on the machine that runs Postroom.",
        SignIn.MICROSOFT,
        takes_password=False,
    ),
    ImapPreset(
        "yahoo",
        "Yahoo",
        ("yahoo.com", "yahoo.co.uk", "yahoo.de", "yahoo.fr", "ymail.com", "rocketmail.com"),
        _tls("imap.mail.yahoo.com"),
        _submit("smtp.mail.yahoo.com"),
        "Enter an app password, which Yahoo makes under Account info > Security. Your usual password is refused.",
    ),
    ImapPreset(
        "gmx",
        "GMX",
        ("gmx.net", "gmx.de", "gmx.at", "gmx.ch"),
        _tls("imap.gmx.net"),
        _submit("mail.gmx.net"),
        _GMX_HINT,
    ),
    ImapPreset("gmx-com", "GMX.com", ("gmx.com",), _tls("imap.gmx.com"), _submit("mail.gmx.com"), _GMX_HINT),
    ImapPreset(
        "web-de",
        "WEB.DE",
        ("web.de",),
        _tls("imap.web.de"),
        _submit("smtp.web.de", Security.STARTTLS),
        "First allow IMAP on the WEB.DE site, under E-Mail > Einstellungen > POP3/IMAP Abruf. Then enter your usual "
        "password, or an app-specific one if you use two-factor authentication.",
    ),
    ImapPreset(
        "posteo",
        "Posteo",
        ("posteo.de", "posteo.net", "posteo.eu"),
        _tls("posteo.de"),
        _submit("posteo.de"),
        "Enter your usual Posteo password.",
    ),
    ImapPreset(
        "mailbox-org",
        "mailbox.org",
        ("mailbox.org",),
        _tls("imap.mailbox.org"),
        _submit("smtp.mailbox.org"),
        "Enter your usual password, or an application password if two-factor authentication is on.",
    ),
    ImapPreset(
        "proton",
        "Proton Bridge",
        ("proton.me", "protonmail.com", "pm.me"),
        ServerAddress("127.0.0.1", 1143, Security.PLAIN),
        SubmissionServer("127.0.0.1", 1025, Security.PLAIN),
        "Proton Mail Bridge must run on the machine that runs Postroom. Enter the password that Bridge shows for the "
        "mailbox; the password of your Proton account is refused.",
    ),
    ImapPreset(
        "gmail",
        "Gmail by IMAP",
        ("gmail.com", "googlemail.com"),
        _tls("imap.gmail.com"),
        _submit("smtp.gmail.com"),
        "Enter an app password, which Google makes at myaccount.google.com/apppasswords once 2-Step Verification is "
        "on. Your usual password is refused.",
        SignIn.GOOGLE,
    ),
)


def preset_for(email: str) -> ImapPreset | None:
    domain = email.rpartition("@")[2].lower()
    return next((each for each in PRESETS if domain in each.domains), None)


def preset_named(key: str) -> ImapPreset | None:
    return next((each for each in PRESETS if each.key == key), None)


def preset_at(host: str) -> ImapPreset | None:
    """The provider whose server this is; the same one serves many domains."""
    return next((each for each in PRESETS if each.address.host == host and not is_this_machine(host)), None)


def sign_in_preset(sign_in: SignIn) -> ImapPreset:
    return next(each for each in PRESETS if each.sign_in is sign_in)


def address_given(
    preset: ImapPreset | None, host: str | None, port: int | None, security: Security | None
) -> ServerAddress | None:
    """The server as it was given, the rest as the preset says; None where neither names one. Without `security`, a
    server on this machine is spoken to in plain text, as Proton's Bridge is. Raises BadInput."""
    if host is not None:
        if security is None and is_this_machine(host) and port != _TLS_PORT:
            security = Security.PLAIN
        return server_address(host, port, security or Security.TLS)
    if preset is None:
        return None
    known = preset.address
    chosen = known.security if security is None else security
    return server_address(known.host, known.port if port is None and chosen is known.security else port, chosen)
