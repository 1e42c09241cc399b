"""Write constraints.txt: the versions in this environment, for `pip install --constraint constraints.txt`.

Run it with the Python whose tests passed: `.venv/bin/python scripts/constraints.py`.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

#: this project and its example, and what pip itself brings
LEFT_OUT = {"slater-rl", "slater-example-algorithm", "pip"}
HEADER = """\
# Versions with which the tests passed (Python {}.{}, Linux). Written by scripts/constraints.py.
# pip install --constraint constraints.txt 'slater-rl[deep]'
"""


def pins() -> list[str]:
    """`name==version` of every package that is installed, in the order of names."""
    found = {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version for d in distributions()}
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name not in LEFT_OUT]


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "constraints.txt")
    place.write_text(HEADER.format(*sys.version_info[:2]) + "\n".join(pins()) + "\n")
