"""The software bill of materials: every locked runtime package, as CycloneDX JSON. The same lock gives the same file.

    python -m tools.sbom [--out dist/postroom-VERSION.cdx.json]

Licences and what needs what come from the installed packages; a package of another platform has neither.
"""

from __future__ import annotations

import argparse
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from postroom import __version__

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
_LINE = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+?)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?$", re.MULTILINE)
_LONGEST_LICENCE = 60


@dataclass(frozen=True)
class Locked:
    name: str
    version: str
    marker: str | None
    """Where it is installed at all; None: everywhere."""

    @property
    def ref(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def locked(text: str) -> list[Locked]:
    return [Locked(canonicalize_name(each["name"]), each["version"], each["marker"]) for each in _LINE.finditer(text)]


def bill(packages: list[Locked]) -> dict[str, Any]:
    by_name = {package.name: package for package in packages}
    product = f"pkg:pypi/postroom@{__version__}"
    content = {
        "components": [_component(package) for package in packages],
        "dependencies": [
            {"ref": product, "dependsOn": sorted(_needs("postroom", by_name))},
            *({"ref": each.ref, "dependsOn": sorted(_needs(each.name, by_name))} for each in packages),
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, product + json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": product,
                "name": "postroom",
                "version": __version__,
                "licenses": [{"license": {"id": "MIT"}}],
                "purl": product,
            }
        },
        **content,
    }


def _component(package: Locked) -> dict[str, Any]:
    marker = [{"name": "python:marker", "value": package.marker}] if package.marker else []
    return {
        "type": "library",
        "bom-ref": package.ref,
        "name": package.name,
        "version": package.version,
        "purl": package.ref,
        **({"licenses": licences} if (licences := list(_licences(package.name))) else {}),
        **({"properties": marker} if marker else {}),
    }


def _licences(name: str) -> Iterator[dict[str, Any]]:
    known = _metadata(name)
    if known is None:
        return
    if "License-Expression" in known:
        yield {"expression": known["License-Expression"]}
    elif "License" in known and "\n" not in (said := known["License"].strip()) and 0 < len(said) <= _LONGEST_LICENCE:
        yield {"license": {"name": said}}


def _needs(name: str, by_name: Mapping[str, Locked]) -> set[str]:
    known = _metadata(name)
    wanted = (Requirement(line) for line in (known.get_all("Requires-Dist") or [] if known else []))
    names = {canonicalize_name(each.name) for each in wanted} - {name}
    return {by_name[each].ref for each in names if each in by_name}


def _metadata(name: str) -> metadata.PackageMetadata | None:
    try:
        return metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the software bill of materials.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / f"postroom-{__version__}.cdx.json")
    out: Path = parser.parse_args().out
    packages = locked(LOCK.read_text("utf-8"))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(bill(packages), indent=2) + "\n", "utf-8")
    print(f"{len(packages)} packages in {out}")


if __name__ == "__main__":
    main()
