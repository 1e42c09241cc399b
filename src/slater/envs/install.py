"""The lines that install each simulator, in one place for error messages, tests and the docs."""

from __future__ import annotations

GYMNASIUM = "pip install 'slater-rl[envs]'"
# bullet-safety-gym declares gymnasium 0.28 but runs on 1.x: with its dependencies, pip would go back to it
BULLET = "pip install 'slater-rl[bullet]' && pip install --no-deps 'bullet-safety-gym==1.4.0'"
RWRL = "pip install 'slater-rl[rwrl]'"
