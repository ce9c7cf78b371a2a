"""Senders whose mail the owner put into a category; the tier policy's rule for what looks like spam."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json
from postroom.domain.ids import new_id
from postroom.mail.tier_policy import RULES, SPAM_LIKE

revision = "0023"
down_revision = "0022"

_RULES = sa.table(
    "policy_rules",
    sa.column("id", Id),
    sa.column("position", sa.Integer),
    sa.column("tier", sa.Integer),
    sa.column("condition", Json),
    sa.column("note", sa.Text),
    sa.column("enabled", sa.Boolean),
    sa.column("updated_at", Instant),
)


def upgrade() -> None:
    op.create_table(
        "category_corrections",
        sa.Column("sender", sa.Text, nullable=False, comment="an address or a domain, in its compared form"),
        sa.Column("category", sa.Text, nullable=False, comment="the name of a category, or none"),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("sender", name="category_corrections_pkey"),
    )
    _add_rule()


def _add_rule() -> None:
    """Behind the first two rules, which are about Gmail's labels; a policy without rules stays without."""
    bind = op.get_bind()
    notes = set(bind.execute(sa.select(_RULES.c.note)).scalars())
    if not notes or SPAM_LIKE in notes:
        return
    place = 2
    later = _RULES.c.position >= place
    op.execute(sa.update(_RULES).where(later).values(position=_RULES.c.position + 1))
    rule = next(rule for rule in RULES if rule["note"] == SPAM_LIKE)
    values = {"id": new_id(), "position": place, "enabled": True, "updated_at": datetime.now(UTC)}
    op.execute(sa.insert(_RULES).values(**values, **rule))
