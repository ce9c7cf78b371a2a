"""Settings: accounts, tokens and logins; adding a mailbox; the forms of settings."""
