"""`make reqs`: for every requirement, the tests that prove it; fails if a finished part has one without a test.

The catalogue is docs/requirements.md: a table row that begins with an id states a requirement, and the table under
"Status" says which parts are done.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CATALOGUE = ROOT / "docs" / "requirements.md"

_REQUIREMENT = re.compile(r"^\| ([A-Z]{2}-\d+) \| ", re.MULTILINE)
_STATUS = re.compile(r"^\| ([^|]+) \| ([A-Za-z0-9, -]+) \| (done|open|begun) \|$", re.MULTILINE)
_RANGE = re.compile(r"([A-Z]{2})-(\d+)(?: to \1-(\d+))?")


def main() -> int:
    text = CATALOGUE.read_text("utf-8")
    known = _REQUIREMENT.findall(text)
    done = set(finished(text))
    tests = proofs()
    for requirement in known:
        names = tests.get(requirement, [])
        status = (
            "proved"
            if names and requirement in done
            else "begun"
            if names
            else "MISSING"
            if requirement in done
            else "open"
        )
        print(f"{requirement:<6} {status:<8} {len(names):>3} test{'' if len(names) == 1 else 's'}")
        for name in names:
            print(f"         {name}")
    unknown = sorted(set(tests) - set(known))
    missing = [requirement for requirement in known if requirement in done and requirement not in tests]
    print(f"{len(known)} requirements: {len(done)} of finished parts, {len(missing)} of those without a test")
    if unknown:
        print(f"tests name requirements that do not exist: {', '.join(unknown)}", file=sys.stderr)
    if missing:
        print(f"finished, but without a test: {', '.join(missing)}", file=sys.stderr)
    return 1 if unknown or missing else 0


def finished(text: str) -> Iterator[str]:
    """The ids of all parts whose status is done."""
    for _, ids, status in _STATUS.findall(text):
        if status == "done":
            for prefix, first, last in _RANGE.findall(ids):
                yield from (f"{prefix}-{number}" for number in range(int(first), int(last or first) + 1))


def proofs() -> dict[str, list[str]]:
    """Requirement id to the tests that carry it, found in the source, so that nothing has to be imported or run."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        module = ast.parse(path.read_text("utf-8"))
        shared = [
            requirement for node in module.body if isinstance(node, ast.Assign) for requirement in marks(node.value)
        ]
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                own = [requirement for decorator in node.decorator_list for requirement in marks(decorator)]
                for requirement in dict.fromkeys([*shared, *own]):
                    found[requirement].append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def marks(node: ast.expr) -> Iterator[str]:
    """The ids within every `pytest.mark.req("A", "B")` below this expression."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "req":
            yield from (str(arg.value) for arg in call.args if isinstance(arg, ast.Constant))


if __name__ == "__main__":
    sys.exit(main())
