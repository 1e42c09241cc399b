"""Write constraints.txt: the versions in this environment, for `pip install --constraint constraints.txt`.

Run it with the Python whose tests passed: `.venv/bin/python scripts/constraints.py`. It refuses versions
that pip would refuse together, and an environment without a package that `make` installs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

#: this project and its example, and what pip itself brings
LEFT_OUT = {"slater-rl", "slater-example-algorithm", "pip"}
#: what `make` installs
INSTALLED = "slater-rl[dev,bullet,rwrl]"
HEADER = """\
# Versions with which the tests passed (Python {}.{}, Linux). Written by scripts/constraints.py.
# pip install --constraint constraints.txt 'slater-rl[deep]'
"""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Package -> version of all that is installed, in the order of names."""
    found = {_plain(d.metadata["Name"]): d.version for d in distributions()}
    return {name: version for name, version in sorted(found.items()) if name not in LEFT_OUT}


def read_pins(path: Path) -> dict[str, str]:
    """The pins of a file of constraints."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def conflicts(versions: Mapping[str, str], wanted: str = INSTALLED) -> list[str]:
    """Why pip could not install `wanted` with these versions, in sentences, by what is installed here.

    What a package asks for is asked of its installed version; one that is pinned to another is passed over.
    """
    found, waiting, seen = [], [("make", Requirement(wanted))], set()
    while waiting:
        by, need = waiting.pop()
        name = _plain(need.name)
        version = versions.get(name)
        if version is None and name not in LEFT_OUT:
            found.append(f"{by} needs {need}, which is not pinned")
            continue
        if version is not None and not need.specifier.contains(version, prereleases=True):
            found.append(f"{by} needs {need}, and {name} is pinned to {version}")
            continue
        if (name, *sorted(need.extras)) in seen:
            continue
        seen.add((name, *sorted(need.extras)))
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        if version not in (None, installed.version):
            continue
        for text in installed.requires or ():
            asked = Requirement(text)
            extras = need.extras or {""}
            if asked.marker is None or any(asked.marker.evaluate({"extra": x}) for x in (*extras, "")):
                waiting.append((f"{name} {installed.version}", asked))
    return sorted(set(found))


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "constraints.txt")
    if wrong := conflicts(pins()):
        sys.exit("\n".join(("constraints.txt was not written:", *wrong)))
    body = "\n".join(f"{name}=={version}" for name, version in pins().items())
    place.write_text(HEADER.format(*sys.version_info[:2]) + body + "\n")
