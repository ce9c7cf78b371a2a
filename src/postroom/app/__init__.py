"""The only package that wires the parts together: settings in, a working installation out."""

from postroom.app.installation import App, open_app, open_vault

__all__ = ["App", "open_app", "open_vault"]
