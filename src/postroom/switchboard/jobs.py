"""The job types that the Switchboard enqueues and others run."""

from __future__ import annotations

from postroom.queue import JobType

CLASSIFY = JobType("classify")
"""Decide what a message is and what to do about it."""
