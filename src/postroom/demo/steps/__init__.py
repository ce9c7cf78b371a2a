"""The steps of the story. Each does one thing with the product, waits for it to come about, and returns what it saw."""
