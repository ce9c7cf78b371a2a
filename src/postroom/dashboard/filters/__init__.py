"""Filters: tier policy and priority rules, contacts, and why a message gets its tier."""
