"""Tests of unit.mailboxes."""
