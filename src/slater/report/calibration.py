"""How often intervals hold what is true, against how often they should: one picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from slater.report.curves import MARKERS, PALETTE, save_figure

#: probabilities of the central intervals that are drawn
LEVELS = np.array([0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98])


def draw_calibration(errors: Mapping[str, Mapping[str, NDArray[np.float64]]], stem: Path) -> None:
    """A panel per utility, a line per kind of policy; on the diagonal intervals are as wide as they say.

    errors: utility -> kind of policy -> (n,) of the truth less the mean, in standard deviations; written to
    `stem`.png and `stem`.svg
    """
    figure, panels = plt.subplots(1, len(errors), figsize=(4.4 * len(errors), 4.2), squeeze=False)
    wide = ndtri(0.5 + LEVELS / 2)
    for panel, (utility, kinds) in zip(panels[0], errors.items(), strict=True):
        panel.plot([0, 1], [0, 1], color="#909497", linewidth=1, linestyle="--")
        for number, (kind, z) in enumerate(kinds.items()):
            shares = [float(np.mean(np.abs(z) <= w)) for w in wide]
            panel.plot(LEVELS, shares, color=PALETTE[number], marker=MARKERS[number], markersize=4,
                       label=f"{kind} ({len(z)})")  # fmt: skip
        panel.set(title=utility, xlabel="probability of the interval", ylabel="share that holds the truth",
                  xlim=(0, 1.02), ylim=(0, 1.02))  # fmt: skip
        panel.legend(loc="upper left", fontsize=8, frameon=False)
        panel.grid(alpha=0.25)
    figure.tight_layout()
    save_figure(figure, stem)
