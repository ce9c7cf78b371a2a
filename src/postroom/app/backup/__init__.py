"""An installation copied to a folder while it runs, and a new home made of such a copy."""

from postroom.app.backup.creating import MadeBackup, backup_size, create_backup, list_backups, note_backup
from postroom.app.backup.restoring import Restored, manifest_of, names_a_database, restore_backup

__all__ = [
    "MadeBackup",
    "Restored",
    "backup_size",
    "create_backup",
    "list_backups",
    "manifest_of",
    "names_a_database",
    "note_backup",
    "restore_backup",
]
