"""Tests of unit.tools."""
