"""The job types of actions.

All that have a key may be armed again: what was done is on record with the action, so a job that runs once more finds
that out, and a person can try a failed action again under the key that the specification gives it.
"""

from __future__ import annotations

from postroom.domain import jobs
from postroom.queue import JobType, KeyUse, RetryPolicy

_OVER_AN_OUTAGE = RetryPolicy(max_attempts=8)
"""About three hours."""
_OVER_A_DAY = RetryPolicy(max_attempts=30)
"""Mail that is hidden must come back, however long Gmail is away."""
_ONCE_MORE = RetryPolicy(max_attempts=2)
"""For what comes again by itself."""

ACTION = JobType(jobs.ACTION, KeyUse.REPEATABLE, _OVER_AN_OUTAGE)
UNSNOOZE = JobType(jobs.UNSNOOZE, KeyUse.REPEATABLE, _OVER_A_DAY)
UNDO = JobType(jobs.UNDO, KeyUse.REPEATABLE, _OVER_AN_OUTAGE)
LABELS_SYNC = JobType(jobs.LABELS_SYNC, KeyUse.REPEATABLE, _ONCE_MORE, keep_completed=100)
SNOOZE_CHECK = JobType(jobs.SNOOZE_CHECK, keep_completed=100)
