"""Mail from files into the archive: mbox, Google Takeout, Maildir and `.eml`, streamed, resumable, nothing twice."""

from postroom.archive.importing.model import ImportProgress, ImportReport, MailSource, Unreadable
from postroom.archive.importing.run import count_mail, import_mail
from postroom.archive.importing.sources import looks_like_takeout, open_eml, open_maildir, open_mbox, open_takeout

__all__ = [
    "ImportProgress",
    "ImportReport",
    "MailSource",
    "Unreadable",
    "count_mail",
    "import_mail",
    "looks_like_takeout",
    "open_eml",
    "open_maildir",
    "open_mbox",
    "open_takeout",
]
