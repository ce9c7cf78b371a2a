"""Tests of integration.sim."""
