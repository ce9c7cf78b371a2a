"""Tests of unit.sim."""
