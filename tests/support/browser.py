"""What `postroom account add` opens when the environment says BROWSER: an owner who agrees at once."""

from __future__ import annotations

import asyncio
import sys

from tests.support.logins import consent

if __name__ == "__main__":
    asyncio.run(consent(sys.argv[1]))
