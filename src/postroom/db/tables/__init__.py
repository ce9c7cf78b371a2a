"""The tables of the control database, one module an area. Migrations create them; a test compares the two."""

from sqlalchemy import MetaData


def all_tables() -> MetaData:
    """The metadata with every table registered, for migrations; other code imports the modules whose tables it uses."""
    from postroom.db.tables import access, accounts, learning, mail, queue, reports, restores, triage, web  # noqa: F401 - for their tables
    from postroom.db.types import metadata

    for index in (index for table in metadata.tables.values() for index in table.indexes if "where" in index.info):
        for dialect in ("postgresql", "sqlite"):
            index.dialect_options[dialect]["where"] = index.info["where"]
    return metadata
