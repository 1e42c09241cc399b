#!/usr/bin/env bash
# Build the wheel, install it alone in a new environment outside the repository, and run the README's five lines.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet build
"$work/venv/bin/python" -m build --wheel --outdir "$work/dist" "$root"
size=$(stat -c %s "$work"/dist/*.whl)
echo "wheel: $((size / 1024)) KB"
[ "$size" -lt 15000000 ] || { echo "the wheel is over 15 MB"; exit 1; }
"$work/venv/bin/pip" install --quiet "$(echo "$work"/dist/*.whl)[deep]"
cd "$work"
"$work/venv/bin/python" - "$root/README.md" <<'PYTHON'
import re
import sys
from pathlib import Path

# the first block of Python in the README, with fewer steps: what a newcomer copies must run
block = re.search(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.S)
assert block, "the README has no Python"
quick = "limits=20, steps=300, model_steps=100"
code = block.group(1).replace("limits=20", quick)
assert quick in code
print(code)
exec(compile(code, "README.md", "exec"), {})
PYTHON
echo "the wheel works alone"
