"""A stand-in for Gmail: a real HTTP server that speaks its REST API, enforces its quota, and fails on command."""
