"""The job types of triage, apart from what runs them: models take long to import."""

from __future__ import annotations

from datetime import timedelta

from postroom.domain import jobs
from postroom.queue import JobType, RetryPolicy

CLASSIFY = JobType(
    jobs.CLASSIFY,
    retry=RetryPolicy(max_attempts=8, longest_delay=timedelta(hours=1)),
    time_limit=timedelta(minutes=15),
)
