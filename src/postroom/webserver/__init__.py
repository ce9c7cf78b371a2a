"""An ASGI application on a port of this machine, behind limits on what one peer can cost it."""

from postroom.webserver.connection import mark_known, mark_stream
from postroom.webserver.limits import ConnectionLimits
from postroom.webserver.serving import listening, serving

__all__ = ["ConnectionLimits", "listening", "mark_known", "mark_stream", "serving"]
