"""Errors in the form that Google gives them: a status, a reason, and the JSON body that clients parse."""

from __future__ import annotations

import json

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class ApiError(Exception):
    """A call that the stand-in refuses."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        domain: str = "global",
        status: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.domain = domain
        self.status = status or _STATUS.get(code, "UNKNOWN")
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        detail = {"message": self.message, "domain": self.domain, "reason": self.reason}
        if self.code == 401:
            detail |= {"location": "Authorization", "locationType": "header"}
        error = {"code": self.code, "message": self.message, "errors": [detail], "status": self.status}
        return json.dumps({"error": error}).encode()


def invalid(message: str) -> ApiError:
    return ApiError(400, "invalidArgument", message)


def not_found(message: str = "Requested entity was not found.") -> ApiError:
    return ApiError(404, "notFound", message)


def unauthenticated() -> ApiError:
    return ApiError(401, "authError", "Request had invalid authentication credentials.")


def insufficient_scope() -> ApiError:
    return ApiError(403, "insufficientPermissions", "Request had insufficient authentication scopes.")


def too_many_in_flight() -> ApiError:
    return ApiError(429, "rateLimitExceeded", "Too many concurrent requests for user", domain="usageLimits")


def over_quota(retry_at: str) -> ApiError:
    text = f"User-rate limit exceeded.  Retry after {retry_at}"
    return ApiError(429, "userRateLimitExceeded", text, domain="usageLimits")
