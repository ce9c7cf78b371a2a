"""Tests of unit.cli."""
