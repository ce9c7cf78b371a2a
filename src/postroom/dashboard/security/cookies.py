"""The cookies of a session, and of a browser that was logged in before.

Their names have the port in them: browsers share cookies among all ports of a machine.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from postroom.dashboard.security.hosts import Hosts, port_of
from postroom.settings import DashboardSettings

_DAY_S = 86_400
_DEVICE_DAYS = 365


def read(request: Request, hosts: Hosts) -> str | None:
    return request.cookies.get(_name(request, hosts))


def give(response: Response, request: Request, hosts: Hosts, settings: DashboardSettings, secret: str) -> None:
    response.set_cookie(
        _name(request, hosts),
        secret,
        max_age=settings.session_days * _DAY_S,
        httponly=True,
        samesite="lax",
        secure=hosts.is_secure,
    )


def take_back(response: Response, request: Request, hosts: Hosts) -> None:
    response.delete_cookie(_name(request, hosts), httponly=True, samesite="lax", secure=hosts.is_secure)


def read_device(request: Request, hosts: Hosts) -> str | None:
    return request.cookies.get(_name(request, hosts, "device"))


def give_device(response: Response, request: Request, hosts: Hosts, secret: str) -> None:
    """Stays after a logout."""
    response.set_cookie(
        _name(request, hosts, "device"),
        secret,
        max_age=_DEVICE_DAYS * _DAY_S,
        httponly=True,
        samesite="lax",
        secure=hosts.is_secure,
    )


def _name(request: Request, hosts: Hosts, kind: str = "") -> str:
    kind = kind and f"_{kind}"
    if hosts.is_secure:
        return f"__Host-postroom{kind}"
    return f"postroom{kind}_{port_of(request.headers.get('host', '')) or 80}"
