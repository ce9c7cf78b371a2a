"""What pages and API show: plain functions of a transaction that return dataclasses. Every query is bounded."""
