"""The pages: a module for each section of the navigation. A module here has a `router`; it is found by itself."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse


def pages_router() -> APIRouter:
    """Routes of pages; they are not part of the API's description."""
    return APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
