"""Run the commands of docs/tutorial.md in an empty folder and write what they print into the page.

`python scripts/tutorial.py` runs all of them (minutes); `--folder DIR` keeps what they make. The tests
run those that take no time (`tests/test_tutorial.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "tutorial.md"
#: a block of code and the block of what it prints; blocks with a title have none
PAIR = re.compile(r"```(bash|python)\n(.*?)```\n\n```text\n(.*?)```\n", re.S)


@dataclass(frozen=True)
class Step:
    """A block of the page: its language, its code, and what the page says that it prints."""

    language: str
    code: str
    printed: str


def steps(page: str) -> Iterator[Step]:
    """The blocks that print something, in order."""
    for found in PAIR.finditer(page):
        yield Step(*found.groups())


def run(step: Step, folder: Path) -> str:
    """What a step prints, in `folder`; a command that fails (1: fail, 4: abstain are verdicts) raises."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = {**os.environ, "PATH": path, "COLUMNS": "110", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    command = ["bash", "-c", step.code] if step.language == "bash" else [sys.executable, "-c", step.code]
    done = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode not in (0, 1, 4):
        raise RuntimeError(f"{step.code} ended with {done.returncode}:\n{done.stdout}")
    return shown(done.stdout)


def shown(text: str) -> str:
    """What a page shows: lines of progress, whose times differ, are left out but for their place."""
    kept: list[str] = []
    for line in text.splitlines():
        if re.match(r"(step \d+ of|choosing:)", line):
            line = "..."
            if kept and kept[-1] == line:
                continue
        kept.append(line.rstrip())
    return "\n".join(kept).strip("\n") + "\n"


def written(page: str, printed: Callable[[Step], str]) -> str:
    """The page with what `printed` gives for each step."""

    def filled(found: re.Match[str]) -> str:
        step = Step(*found.groups())
        return f"```{step.language}\n{step.code}```\n\n```text\n{printed(step)}```\n"

    return PAIR.sub(filled, page)


if __name__ == "__main__":
    folder = Path(sys.argv[2] if sys.argv[1:2] == ["--folder"] else tempfile.mkdtemp()).resolve()
    folder.mkdir(parents=True, exist_ok=True)

    def told(step: Step) -> str:
        """Run a step, and say so."""
        print(step.code.strip(), flush=True)
        return run(step, folder)

    PAGE.write_text(written(PAGE.read_text(), told))
