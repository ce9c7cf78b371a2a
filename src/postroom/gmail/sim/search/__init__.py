"""Gmail's search language: a parser, and a matcher that reads no body unless a query asks for words in it."""

from postroom.gmail.sim.search.grammar import QueryError, parse
from postroom.gmail.sim.search.match import Candidate, Matcher

__all__ = ["Candidate", "Matcher", "QueryError", "parse"]
