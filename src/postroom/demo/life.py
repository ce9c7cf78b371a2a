"""What goes on after the story: now and then a letter arrives, so that there is something to see."""

from __future__ import annotations

import asyncio
from itertools import count, cycle

from postroom.demo.post import DOCTOR, Letter
from postroom.demo.scene import Scene

_EVERY_S = 12.0
_LETTERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Morning News <news@news.example>", "Newsletter {n}", {"List-Unsubscribe": "<https://news.example/off>"}),
    ("City Power <billing@power.example>", "Your electricity bill, number {n}", {}),
    ("Carol Reyes <carol@choir.example>", "Who brings the cake? ({n})", {}),
    ("Lamp World <offers@lamps.example>", "{n} new lamps", {"List-Unsubscribe": "<https://lamps.example/off>"}),
    (DOCTOR, "Your results of test {n} are ready", {}),
)


async def life_goes_on(scene: Scene) -> None:
    """Until it is called off."""
    for number, (sender, subject, headers) in zip(count(1), cycle(_LETTERS)):
        await asyncio.sleep(_EVERY_S)
        scene.deliver(Letter(sender, subject.format(n=number), headers=headers))
