"""Tests of integration.web."""
