"""Thin commands over the application."""
