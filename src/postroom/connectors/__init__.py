"""What stands between a mail source and the Switchboard. Talks to both, and knows no database."""
