"""The search language: one grammar wherever mail is searched, read into a tree that says what is meant. Pure.

`strict` refuses what is likely a mistake (an unknown operator, an operator without operand); without it the language is
as forgiving as Gmail's.
"""

from postroom.mail.query.grammar import QueryError, parse, with_whole_dates
from postroom.mail.query.nodes import format_query, opens_spam_and_trash, span

__all__ = ["QueryError", "format_query", "opens_spam_and_trash", "parse", "span", "with_whole_dates"]
