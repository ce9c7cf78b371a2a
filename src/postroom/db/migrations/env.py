"""Alembic's entry point. It runs on the connection, and in the transaction, that `postroom.db.opening` hands over."""

from alembic import context

from postroom.db.tables import all_tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=all_tables(),
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
