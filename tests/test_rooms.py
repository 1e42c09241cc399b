"""The plan of the house: arrows point one way, and CONTRIBUTING.md has a line for every room."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "slater"
#: rooms from the bottom up; a room imports rooms of lower floors, and nothing of its own floor or above
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "cones"),
    ("disk",),
    ("encoding",),
    (
        "limits",
        "limit_status",
        "history",
        "pairs",
        "threads",
        "interrupts",
        "progress",
        "mixing",
    ),
    ("policy", "data"),
    ("envs",),
    ("runs",),
    ("tabular", "deep"),
    ("jobs",),
    ("collect", "certify"),
    ("report",),
    ("experiments",),
    ("tuning",),
    ("front", "plotting"),
    ("commands",),
    ("cli",),
)
#: the same inside `slater.deep`
DEEP_FLOORS: tuple[tuple[str, ...], ...] = (
    ("task", "checkpoint", "compiled"),
    ("batches", "nets"),
    ("game", "candidates"),
    ("log_model",),
    ("ope",),
    ("algorithms",),
    ("engine",),
)
#: rooms that run without JAX, Equinox and Optax
WITHOUT_JAX = ("slater", "slater.limits", "slater.policy", "slater.data", "slater.runs", "slater.envs", "slater.tabular", "slater.certify", "slater.report")  # noqa: E501  # fmt: skip


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Parts of the name of every module of ours that a file imports, anywhere in it, without `slater`."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from slater.deep import ope` is about ope; a name that is no room is passed over below
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            first, *rest = name.split(".")
            if first == "slater" and rest:
                yield tuple(rest)


def upward(folder: Path, floors: tuple[tuple[str, ...], ...], inside: tuple[str, ...] = ()) -> list[str]:
    """Sentences on every import that does not go to a lower floor."""
    floor = {room: number for number, rooms in enumerate(floors) for room in rooms}
    found = []
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).with_suffix("").parts[0]
        if room == "__init__":  # the door of the house, or of a room, shows what is inside
            continue
        for parts in imports(path):
            if parts[: len(inside)] != inside or len(parts) == len(inside):
                continue
            to = parts[len(inside)]
            if to in floor and to != room and floor[to] >= floor[room]:
                found.append(f"{path.relative_to(folder)} imports {to}, which is not below {room}")
    return sorted(set(found))


@pytest.mark.parametrize(
    ("folder", "floors", "inside"), [(SOURCE, FLOORS, ()), (SOURCE / "deep", DEEP_FLOORS, ("deep",))]
)
def test_arrows_point_one_way(folder, floors, inside):
    known = {room for rooms in floors for room in rooms} | {"__init__", "__pycache__"}
    rooms = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert rooms <= known, "a new room needs a floor"
    assert not upward(folder, floors, inside)


def test_an_upward_import_is_found(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bad.py").write_text("def late():\n    from slater.deep.nets import mlp\n")
    (tmp_path / "limits.py").write_text("from slater.errors import InputError\n")
    rooms = (("errors",), ("limits",), ("data",), ("deep",))
    assert upward(tmp_path, rooms) == ["data/bad.py imports deep, which is not below data"]


def test_every_room_has_a_line_in_the_plan():
    """The tree of CONTRIBUTING.md: every package and every module of the top floor, each with words."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = text[text.index("    slater/") :].split("\n\n")[0].splitlines()[1:]
    lines = {line.split()[0].rstrip("/"): line.split()[1:] for line in tree}
    packages = {path.parent.name for path in SOURCE.rglob("__init__.py")} - {"slater"}
    modules = {path.name for path in SOURCE.glob("*.py")}
    assert packages | modules <= set(lines)
    assert set(lines) <= packages | modules | {path.name for path in (SOURCE / "deep").glob("*.py")}
    assert all(lines.values())


def test_algorithm_2_can_be_read_in_one_sitting():
    """As printed with its config in 200 lines; one iteration of the default on one screen."""
    folder = SOURCE / "deep" / "algorithms" / "pdca"
    assert len((folder / "paper.py").read_text().splitlines()) <= 200
    tree = ast.parse((folder / "default.py").read_text())
    (update,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "update")
    assert update.end_lineno is not None
    assert update.end_lineno - update.lineno < 50


def test_rooms_without_jax_import_without_it():
    """Their modules load where JAX cannot be imported: one process for all of them."""
    code = "import sys\nfor name in ('jax', 'equinox', 'optax'):\n    sys.modules[name] = None\n"
    code += "".join(f"import {name}\n" for name in WITHOUT_JAX)
    env = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
