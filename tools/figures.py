"""The shape of the source tree in figures: `python -m tools.figures` prints the table that ARCHITECTURE.md shows, and
`make docs` writes it there.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "postroom"
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN = "<!-- figures: written by `make docs` -->"
END = "<!-- end of figures -->"


def figures(source: Path = SOURCE) -> Iterator[tuple[str, str]]:
    texts = {path: path.read_text("utf-8") for path in sorted(source.rglob("*.py")) if "migrations" not in path.parts}
    modules = {path: text for path, text in texts.items() if path.name != "__init__.py"}
    lines = sorted(text.count("\n") for text in modules.values())
    packages = Counter(path.parent for path in modules)
    largest, size = packages.most_common(1)[0]
    everything = sum(text.count("\n") for text in texts.values())
    imports = sum(_import_lines(text) for text in texts.values())
    classes = Counter(name for text in texts.values() for name in _public_classes(text))
    yield "modules (without `__init__.py` and migrations)", f"{len(modules)}"
    yield "lines", f"{everything:,}"
    yield (
        "lines of a module: median, 90th percentile, most",
        f"{median(lines):.0f}, {lines[len(lines) * 9 // 10]}, {lines[-1]}",
    )
    yield "modules under 40 lines", f"{sum(count < 40 for count in lines)}"
    yield "packages", f"{len(packages)}"
    yield "modules of the largest package", f"{size} (`{largest.relative_to(source)}/`)"
    yield "share of lines that are imports", f"{imports / everything:.1%}"
    yield "public class names that occur more than once", f"{sum(count > 1 for count in classes.values())}"


def _import_lines(text: str) -> int:
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def _public_classes(text: str) -> Iterator[str]:
    yield from (
        node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )


def table() -> str:
    rows = [f"| {name} | {value} |" for name, value in figures()]
    return "\n".join(["| | |", "|---|---|", *rows])


def write() -> None:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write()
    else:
        print(table())
