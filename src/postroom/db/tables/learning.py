"""What local triage has learned, for each account: its model, the examples behind it, and its right to each answer.

No text of mail is here: facts are keyed hashes, and the key is in the vault. Answers name actions and labels.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    text,
)

from postroom.db.types import Id, Instant, Json, metadata

learners = Table(
    "learners",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("key_id", Text, nullable=False, comment="of the key that facts are hashed with"),
    Column("teacher", Text, comment="a hash of the model's name and the owner's instructions to it"),
    Column("last_seq", BigInteger, nullable=False, server_default="0", comment="of the latest label"),
    Column("model", LargeBinary, comment="weights by hashed fact, up to `fitted_seq`"),
    Column("calibration", Json, nullable=False, server_default="[]"),
    Column("fitted_seq", BigInteger, nullable=False, server_default="0"),
    Column("fitted_at", Instant),
    Column("asked", BigInteger, nullable=False, server_default="0", comment="messages that the model decided"),
    Column("asked_microdollars", BigInteger, nullable=False, server_default="0", comment="and what they cost"),
    Column("verdicts_until", Id, comment="the last entry of the audit log that was looked at"),
)

# One for each message that was considered. It outlives the message.
learned_examples = Table(
    "learned_examples",
    metadata,
    Column("id", Id, primary_key=True),
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("message_id", Id, ForeignKey("messages.id", ondelete="SET NULL")),
    Column("facts", LargeBinary, nullable=False, comment="keyed hashes of 64 bits"),
    Column("kind", BigInteger, comment="keyed hash of the authenticated domain; null: not authenticated"),
    Column("teachable", Boolean, nullable=False, comment="false: suspicious or not authenticated, so never a label"),
    Column("guess", Text, comment="what the learner would have answered"),
    Column("confidence", Double),
    Column("answer", Text, comment="the label; null: there is none"),
    Column("source", Text, comment="whose label it is"),
    Column("seq", BigInteger, comment="the order in which labels came; a corrected one gets a new number"),
    Column("held_out", Boolean, nullable=False, server_default=text("false")),
    Column("labels_then", Json, nullable=False, server_default="[]", comment="in the mailbox, when it was considered"),
    Column("created_at", Instant, nullable=False),
    CheckConstraint("source IN ('model', 'owner')", name="source"),
    CheckConstraint("(answer IS NULL) = (seq IS NULL)", name="label_has_seq"),
    CheckConstraint("teachable OR answer IS NULL", name="label_is_teachable"),
    Index("learned_examples_message_id_idx", "message_id", unique=True),
    Index("learned_examples_seq_idx", "account_id", "seq", unique=True),
    Index("learned_examples_kind_idx", "account_id", "kind", "answer"),
)

learned_rights = Table(
    "learned_rights",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("answer", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("recent", Text, nullable=False, comment="held-out comparisons in this state: = agreed, x differed"),
    Column("since", Instant, nullable=False),
    Column("compared", Integer, nullable=False, server_default="0", comment="in shadow, ever"),
    Column("differed", Integer, nullable=False, server_default="0"),
    Column("checked", Integer, nullable=False, server_default="0", comment="with the right, ever"),
    Column("check_differed", Integer, nullable=False, server_default="0"),
    Column("decided", Integer, nullable=False, server_default="0", comment="without the model"),
    Column("saved_microdollars", BigInteger, nullable=False, server_default="0"),
    CheckConstraint("state IN ('shadow', 'earned', 'lost')", name="state"),
)
