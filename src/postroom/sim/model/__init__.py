"""A stand-in for a language model: an OpenAI-compatible server whose answers are made up, repeatable, and say so."""

from __future__ import annotations
