"""The one place where mail enters, and where history is recovered under a budget: an MCP server."""
