"""Tests of unit.web."""
