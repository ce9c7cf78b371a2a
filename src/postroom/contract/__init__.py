"""What every tool of the Switchboard takes and answers, for the server and for all that call it."""
