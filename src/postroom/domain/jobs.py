"""Names of jobs that one part enqueues and another runs."""

CLASSIFY = "classify"
"""Decide what a message is and what to do about it. Payload: {"account_id", "message_id"}."""
ON_DEMAND = "ondemand.gmail"
"""Search a mailbox and take in what is found. Payload: {"account_id", "query", "max_results"}."""
