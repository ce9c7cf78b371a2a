"""Who may see the dashboard: passphrase, one-time links, sessions, and the gate that every request passes."""
