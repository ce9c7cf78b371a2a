"""The categories of mail that a backfill may ask for (BF-16, DQ-1 to DQ-3): what the owner defines, and a model over
headers for everything else. Pure; decided before any body is fetched or any language model is asked."""

from __future__ import annotations

from postroom.mail.categories.definitions import (
    Categories,
    Category,
    CategoryFacts,
    CategoryVerdict,
    facts_of,
    load,
    names_on,
    parse_categories,
    shipped,
    with_owner,
)

__all__ = [
    "Categories",
    "Category",
    "CategoryFacts",
    "CategoryVerdict",
    "facts_of",
    "load",
    "names_on",
    "parse_categories",
    "shipped",
    "with_owner",
]
