"""Pages without reading all that there is: the audit log by each filter, items of web sources by endpoint."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.drop_index("audit_log_subject_idx", "audit_log")
    op.create_index("audit_log_subject_id_idx", "audit_log", ["subject_id", "id"])
    op.create_index("audit_log_subject_type_idx", "audit_log", ["subject_type", "id"])
    op.create_index("discovered_items_endpoint_idx", "discovered_items", ["endpoint_id", "status"])
