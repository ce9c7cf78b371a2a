"""Tests of unit.app."""
