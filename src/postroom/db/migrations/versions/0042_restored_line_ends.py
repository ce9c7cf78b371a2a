"""The hash of restored mail as a mailbox gives it back that ends every line with CRLF."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0038"


def upgrade() -> None:
    comment = "of these with CRLF line ends, as some mailboxes keep them"
    op.add_column("restore_items", sa.Column("wire_sha256", sa.Text(), comment=comment))
    op.create_index("restore_items_wire_sha256_idx", "restore_items", ["wire_sha256"])
