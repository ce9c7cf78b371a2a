"""The Gmail API for one account at a time - login, calls, answers, errors."""
