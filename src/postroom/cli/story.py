"""What `postroom demo` prints: the chapters of the story, one after the other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from postroom import demo as story
from postroom.cli.output import console, print_table, printable
from postroom.telemetry import logs


def tell() -> None:
    logs.configure(level="error", format="console")
    console.print("[bold]Postroom demo[/bold]: all mail here is simulated. Built so far: queue, Gmail, archive.\n")
    started = time.monotonic()
    for chapter in (_morning, _fairness, _crash, _mailbox):
        with story.temporary_home() as folder:
            chapter(folder)
    console.print(f"That took {time.monotonic() - started:.1f} s. Next: `postroom --help`, README.md, ARCHITECTURE.md.")


def _morning(folder: Path) -> None:
    console.print("[bold]1. Eight in the morning.[/bold] 15 newsletters and a doctor's note arrive at once.")
    with console.status("serving the mail ..."):
        served = asyncio.run(story.eight_in_the_morning(folder))
    for place, subject in enumerate([*served[:3], "..."], start=1):
        console.print(f"   {place if subject != '...' else '':>2} {subject}", markup=False)
    console.print("   The doctor did not wait behind the newsletters.\n")


def _fairness(folder: Path) -> None:
    console.print("[bold]2. A flood.[/bold] 1,110 messages wait in each of three tiers. The first 1,110 turns:")
    with console.status("serving 3,330 messages ..."):
        results = asyncio.run(story.all_tiers_busy(folder))
    print_table(
        ["   tier", "turns", "longest wait, in turns of others"],
        ([f"   {result.tier}", result.served, result.longest_gap] for result in results),
        empty="",
    )
    console.print("   Urgent first, and nobody is passed over more than 110 times.\n")


def _crash(folder: Path) -> None:
    console.print("[bold]3. A crash.[/bold] A worker process is killed (SIGKILL) in the middle of 400 jobs.")
    with console.status("working, killing, recovering ..."):
        crash = asyncio.run(story.kill_a_worker(folder))
    again = crash.attempts - crash.done_in_the_end
    console.print(f"   done before the kill  {crash.done_before_the_kill:>4}")
    console.print(f"   done in the end       {crash.done_in_the_end:>4} of {crash.jobs}")
    console.print(f"   run a second time     {again:>4}  (those the dead worker had in its hands)")
    console.print("   Nothing was lost: a claim is a lease, and one that nobody renews passes on.\n")


def _mailbox(folder: Path) -> None:
    console.print("[bold]4. Ten years of mail.[/bold] A simulated Gmail account, fetched into an archive of your own.")
    with console.status("fetching, storing, searching, verifying ..."):
        box = asyncio.run(story.ten_years_of_mail(folder))
    console.print(f"   fetched and stored    {box.fetched:>4} messages")
    console.print(f"   found                 {box.found:>4} for {story.DEMO_QUERY!r}, the newest:", markup=False)
    for mail in box.newest_found:
        console.print(
            f"     {mail.date:%Y-%m-%d} {printable(mail.sender)[:28]:<28} {printable(mail.subject)[:32]}", markup=False
        )
    verdict = "every byte is what was stored" if box.is_sound else "something is wrong"
    console.print(f"   verified              {box.verified:>4} messages: {verdict}\n")
