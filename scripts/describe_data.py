"""Describe the project's datasets in docs/datasets.md: what each source did, how much keeps the limits, what
a mixture could reach; a picture each.

    python scripts/describe_data.py --densities --out docs/datasets.md --figures docs/figures/datasets
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slater.collect.benchmark import BENCHMARKS, behaviour_path
from slater.collect.recording import DensityCheck, check_densities
from slater.data import Dataset, load
from slater.errors import InputError
from slater.mixing import lp_weights


@dataclass(frozen=True)
class SourceMeans:
    """One source of a dataset: means per episode, undiscounted, and their standard deviations over
    episodes.
    """

    name: str
    episodes: int
    mean_return: float
    return_deviation: float
    mean_cost: float
    cost_deviation: float


def source_means(data: Dataset) -> list[SourceMeans]:
    """Every source with its means, in the order of the log."""
    if data.source is None:
        raise InputError("the dataset does not say which source its episodes are from.")
    returns, costs = data.episodes.returns, data.episodes.costs.sum(axis=1)
    found = []
    for name in dict.fromkeys(data.source):
        own = data.source == name
        found.append(
            SourceMeans(
                str(name), int(own.sum()), float(returns[own].mean()), float(returns[own].std()),
                float(costs[own].mean()), float(costs[own].std()),
            )
        )  # fmt: skip
    return found


def best_mixture_of_sources(
    sources: Sequence[SourceMeans], limit: float
) -> tuple[float, float, dict[str, float]]:
    """Return, cost and weights of the best mixture of sources whose mean cost keeps the limit.

    Where none keeps it, the mixture of least cost.
    """
    estimates = np.array([[source.mean_return, source.mean_cost] for source in sources])
    weights = lp_weights(estimates, np.array([limit]))
    mixed = weights @ estimates
    named = {source.name: float(w) for source, w in zip(sources, weights, strict=True) if w > 0.0}
    return float(mixed[0]), float(mixed[1]), named


def dataset_section(
    data: Dataset, name: str, limits: Sequence[float], picture: str | None, weakness: str = ""
) -> str:
    """A dataset in Markdown: what it fails to show, two tables, and its picture if there is one."""
    sources = source_means(data)
    returns, costs = data.episodes.returns, data.episodes.costs.sum(axis=1)
    lines = [
        f"## {name}", "",
        f"`{data.metadata.env_id}`: {len(returns)} episodes, {data.size:,} rows, fingerprint "
        f"`{data.fingerprint[:16]}`.{f' **{weakness}**' if weakness else ''}", "",
        "| source | episodes | return | std | cost | std |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {s.name} | {s.episodes} | {s.mean_return:.1f} | {s.return_deviation:.1f} | {s.mean_cost:.1f} | "
        f"{s.cost_deviation:.1f} |"
        for s in sources
    ]
    lines += ["", "| limit per episode | episodes within | best episode | best source | best mixture |"]
    lines += ["|---|---|---|---|---|"]
    for limit in limits:
        within: NDArray[np.bool_] = costs <= limit
        episode = f"{returns[within].max():.1f}" if within.any() else "none"
        keeping = [s for s in sources if s.mean_cost <= limit]
        best = max(keeping, key=lambda s: s.mean_return, default=None)
        single = f"{best.mean_return:.1f} ({best.name})" if best else "none"
        reached, cost, weights = best_mixture_of_sources(sources, limit)
        mixed = ", ".join(f"{100 * w:.0f}% {source}" for source, w in weights.items())
        if cost > limit * (1 + 1e-6):
            mixed += f"; cost {cost:.1f}"
        lines.append(
            f"| {limit:g} | {100 * within.mean():.0f}% | {episode} | {single} | {reached:.1f} ({mixed}) |"
        )
    if picture is not None:
        lines += ["", f"![{name}: return against cost of every episode, by source]({picture})"]
    return "\n".join(lines) + "\n"


def dataset_line(data: Dataset, name: str, limits: Sequence[float]) -> str:
    """A dataset as one line of the table of all: its size, its best source, the best that keeps a limit."""
    sources = source_means(data)
    middle = sorted(limits)[len(limits) // 2]
    best = max(sources, key=lambda s: s.mean_return)
    keeping = [s for s in sources if s.mean_cost <= middle]
    within = max(keeping, key=lambda s: s.mean_return, default=None)
    share = 100 * float(np.mean(data.episodes.costs.sum(axis=1) <= middle))
    kept = f"{within.mean_return:.1f} at {within.mean_cost:.1f}" if within else "none"
    return (
        f"| [{name}](#{name}) | {len(data.episodes):,} | {data.size:,} | {len(sources)} | "
        f"{best.mean_return:.1f} at {best.mean_cost:.1f} | {middle:g} | {share:.0f}% | {kept} |"
    )


def density_line(name: str, found: DensityCheck) -> str:
    """A line of the table of densities."""
    return (
        f"| {name} | {found.rows:,} | {found.worst:.1e} | {found.weights[0]:.6f} to {found.weights[1]:.6f} | "
        f"{found.narrower[0]:.4f} to {found.narrower[1]:.4f} | {found.errors:.1f} |"
    )


def datasets_page(lines: Sequence[str], densities: Sequence[str], sections: Sequence[str]) -> str:
    """The whole page, from `dataset_line`, `density_line` (none: left out) and `dataset_section` of each."""
    parts = [HEAD, *lines]
    if densities:
        parts += ["", DENSITIES, *densities]
    return "\n".join(parts) + "\n\n" + "\n".join(sections)


HEAD = """# The project's datasets

Twelve logs of simulators, each by several policies. `make data` records them ([make data](howto/make-data.md)).

| word | meaning |
|---|---|
| return, cost | sums over an episode, undiscounted; `std` is over episodes |
| source | a policy of the task's behaviour file; its name says why it was kept |
| best episode, best source | those of most return within the limit |
| best mixture | draws one source per episode, so that the mean cost keeps the limit: what can be reached without improving on any source |

What a dataset fails to show stands in bold type at the head of its section.

This page is written by `python scripts/describe_data.py --densities --out docs/datasets.md --figures docs/figures/datasets`.

## All twelve

| dataset | episodes | rows | sources | best source: return at cost | limit | episodes within | best source within |
|---|---|---|---|---|---|---|---|"""  # noqa: E501  a row of Markdown is one line

DENSITIES = """## Densities

Every row of a log says how likely its action was. `slater behaviours check` computes each density again from the states, the actions and the behaviour file.

| column | meaning |
|---|---|
| itself | mean importance weight of a source under itself, over its sources |
| half the noise | mean weight of the same policy with half the noise. It is 1 on average only if the actions were drawn with the densities that are recorded |
| standard errors | its largest distance from 1 over sources, in standard errors, rows counted as independent |

| dataset | densities | largest relative difference | itself | half the noise | standard errors |
|---|---|---|---|---|---|"""  # noqa: E501


def dataset_picture(data: Dataset, name: str, limits: Sequence[float], path: str | Path) -> None:
    """Return against cost of every episode, coloured by source; dashed lines are the limits."""
    from matplotlib.figure import Figure

    if data.source is None:
        raise InputError("the dataset does not say which source its episodes are from.")
    returns, costs = data.episodes.returns, data.episodes.costs.sum(axis=1)
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for source in source_means(data):
        own = data.source == source.name
        axes.scatter(costs[own], returns[own], s=9, alpha=0.6, linewidths=0, label=source.name)
    for limit in limits:
        axes.axvline(limit, color="0.6", linestyle="--", linewidth=0.8)
    axes.set(xlabel="cost per episode", ylabel="return per episode", title=f"{name} ({data.metadata.env_id})")
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    figure.savefig(path, dpi=80)


def main(words: Sequence[str] | None = None) -> None:
    """Write the page, or print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="datasets (default: those of the twelve in the folder)")
    parser.add_argument("--folder", type=Path, default=Path("data"), help="where the datasets are")
    parser.add_argument("--out", type=Path, help="Markdown file to write (default: print)")
    parser.add_argument("--figures", type=Path, help="folder for NAME.png (default: no pictures)")
    parser.add_argument(
        "--densities", action="store_true", help="recompute all densities, and add their table"
    )
    parser.add_argument("--behaviours", type=Path, help="folder of the behaviour files, for --densities")
    told = parser.parse_args(words)
    sections, lines, densities = [], [], []
    for name in told.names or [name for name in BENCHMARKS if (told.folder / f"{name}.hdf5").exists()]:
        data, known, picture = load(told.folder / f"{name}.hdf5"), BENCHMARKS[name], None
        if told.figures is not None:
            told.figures.mkdir(parents=True, exist_ok=True)
            dataset_picture(data, name, known.limits, told.figures / f"{name}.png")
            if told.out is not None:
                picture = os.path.relpath(told.figures / f"{name}.png", told.out.parent)
        sections.append(dataset_section(data, name, known.limits, picture, known.weakness))
        lines.append(dataset_line(data, name, known.limits))
        if told.densities:
            found = check_densities(data, behaviour_path(name, told.behaviours))
            densities.append(density_line(name, found))
    page = datasets_page(lines, densities, sections)
    if told.out is None:
        print(page)
    else:
        told.out.write_text(page)


if __name__ == "__main__":
    main()
