"""Tests of integration.mailboxes."""
