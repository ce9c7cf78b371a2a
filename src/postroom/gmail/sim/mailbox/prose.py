"""The words of a message: greeting, facts, paragraphs, closing, and what is quoted of the message before."""

from __future__ import annotations

import html

from postroom.gmail.sim.mailbox.dice import Dice
from postroom.gmail.sim.mailbox.letters import Letter
from postroom.gmail.sim.mailbox.ugly import HUGE_CHARS

_STYLE = "<style>body{font-family:sans-serif;color:#222}td{padding:8px}.foot{color:#888;font-size:11px}</style>"


def paragraphs_of(letter: Letter, dice: Dice, *, answers: bool, huge: bool) -> list[str]:
    language = letter.language
    lines: list[str] = []
    if letter.personal:
        lines.append(language.greeting.format(name=letter.to[0].name.partition(" ")[0] or "you"))
    lines += letter.facts
    for _ in range(letter.paragraphs):
        lines.append(" ".join(dice.pick(language.sentences) for _ in range(dice.between(2, 4))))
    if huge:
        sentence = dice.pick(language.sentences)
        lines += [sentence * 20] * (HUGE_CHARS // (20 * len(sentence)))
    if letter.personal:
        lines += [language.closing, letter.sender.name.partition(" ")[0]]
    if answers and dice.chance(600):
        lines += ["", *(f"> {dice.pick(language.sentences)}" for _ in range(dice.between(1, 3)))]
    return lines


def as_html(lines: list[str], letter: Letter, dice: Dice) -> str:
    body = "".join(f"<p>{html.escape(line)}</p>\r\n" for line in lines if line)
    if not letter.unsubscribe:
        return f"<html><head><title>{html.escape(letter.subject)}</title></head><body>{body}</body></html>\r\n"
    pixel = f'<img src="https://{letter.sender.domain}/o/{dice.draw():x}.gif" width="1" height="1" alt="">'
    foot = f'<p class="foot"><a href="https://{letter.sender.domain}/u">Unsubscribe</a>&nbsp;&middot; {pixel}</p>'
    return (
        f"<!DOCTYPE html><html><head>{_STYLE}<!-- tracked --></head><body>"
        f"<table><tr><td>\r\n{body}</td></tr></table>{foot}</body></html>\r\n"
    )


def as_calendar(letter: Letter, dice: Dice) -> str:
    start = f"20{dice.between(17, 26)}{dice.between(1, 12):02d}{dice.between(1, 28):02d}T{dice.between(8, 18):02d}0000Z"
    lines = (
        *("BEGIN:VCALENDAR", "PRODID:-//Postroom//Stand-in//EN", "VERSION:2.0", "METHOD:REQUEST", "BEGIN:VEVENT"),
        *(f"UID:{dice.draw():016x}@{letter.sender.domain}", f"DTSTAMP:{start}", f"DTSTART:{start}", "DURATION:PT1H"),
        *(f"SUMMARY:{letter.subject}", f"ORGANIZER:mailto:{letter.sender.address}", "END:VEVENT", "END:VCALENDAR", ""),
    )
    return "\r\n".join(lines)
