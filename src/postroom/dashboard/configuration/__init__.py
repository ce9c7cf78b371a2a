"""Settings that can be set on a page: the model, caps, notifications, and the keys in the vault."""
