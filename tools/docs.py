"""`make docs` writes the generated pages; `--check` fails if one of them is not what it should be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from postroom import settings
from postroom.settings.live import EDITABLE
from postroom.settings.tree import setting_groups

ROOT = Path(__file__).parent.parent


def settings_page() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield (
        "Made from `src/postroom/settings/` by `make docs`. A setting is looked up in the environment first, then in "
        "`dashboard.toml` (what was set in the dashboard; marked with *) and `postroom.toml` in the home folder, then "
        "here. In a file, `queue.keep_failed_days` is the key `keep_failed_days` of the table `[queue]`. A key that is "
        "not listed here is an error. `postroom settings list` shows what is set, and where."
    )
    by_name = dict(setting_groups())
    for title, group in settings.reference():
        yield ""
        yield f"## {title}"
        yield ""
        if (about := by_name.get(group[0].path[0])) is not None:
            yield about.__doc__ or ""
            yield ""
        yield "| setting | environment | default | what it does |"
        yield "|---|---|---|---|"
        for setting in group:
            mark = " *" if setting.key in EDITABLE else ""
            key = f"`{setting.key}`{mark}" if setting.key else ""
            default = f"`{setting.default}`" if setting.default else ""
            yield f"| {key} | `{setting.variable}` | {default} | {setting.help} |"


PAGES = {ROOT / "docs" / "settings.md": settings_page}


def main(arguments: list[str]) -> int:
    stale = []
    for path, page in PAGES.items():
        wanted = "\n".join(page()) + "\n"
        if path.exists() and path.read_text("utf-8") == wanted:
            continue
        if "--check" in arguments:
            stale.append(str(path.relative_to(ROOT)))
        else:
            path.write_text(wanted, "utf-8")
    if stale:
        print(f"out of date, run `make docs`: {', '.join(stale)}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
