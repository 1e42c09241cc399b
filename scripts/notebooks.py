"""Run the notebooks of examples/notebooks and keep what they print: `python scripts/notebooks.py [NAME...]`.

A small runner, so that nobody needs a Jupyter kernel to check them: cells run one after the other in one
namespace; what they print, the value of a last expression and every open figure become their outputs.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"


def execute(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """The notebook with the outputs of its cells; runs in the current folder."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        place, said, value = f"{name}, cell {count}", io.StringIO(), None
        with contextlib.redirect_stdout(said):
            exec(compile(tree, place, "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), place, "eval"), names)
        cell["execution_count"], cell["outputs"] = count, []
        if text := said.getvalue():
            cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": lines(text)})
        if value is not None:
            shown = {"data": {"text/plain": lines(repr(value))}, "metadata": {}}
            cell["outputs"].append({**shown, "execution_count": count, "output_type": "execute_result"})
        for number in plt.get_fignums():
            png = io.BytesIO()
            plt.figure(number).savefig(png, dpi=70, bbox_inches="tight", metadata={"Software": None})
            data = {"image/png": base64.b64encode(png.getvalue()).decode()}
            cell["outputs"].append({"data": data, "metadata": {}, "output_type": "display_data"})
        plt.close("all")
    return notebook


def lines(text: str) -> list[str]:
    """As notebooks keep text."""
    return text.splitlines(keepends=True)


def main(names: list[str]) -> None:
    """Run the named notebooks, or all, each in an empty folder, and write them back."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = json.loads(path.read_text())
        here = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                notebook = execute(notebook, path.name)
            finally:
                os.chdir(here)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        print(f"{path.name}: {sum(cell['cell_type'] == 'code' for cell in notebook['cells'])} cells")


if __name__ == "__main__":
    main(sys.argv[1:])
