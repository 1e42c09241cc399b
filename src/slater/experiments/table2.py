"""Table 2 of the paper: Bullet Safety Gym, tasks x algorithms x limits 10/20/40 x seeds.

The paper's protocol: 100,000 iterations, a policy kept every 2,500, each kept policy run for 20 episodes and
the results averaged (what a mixture is worth), the mean over limits and three seeds, cost divided by its
limit, reward normalised by DSRL's constants (`slater.envs.scores`). An algorithm whose mixture has other
weights is averaged with those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slater.collect.benchmark import BENCHMARKS
from slater.experiments.published import STATUS, published, published_for
from slater.experiments.standing import (
    by_task,
    differences,
    limits_of,
    mean_reward,
    safe,
    sentences,
    standings,
    standings_table,
)
from slater.experiments.suite import Folder, write_cells_csv
from slater.experiments.tables import curve_means, facts, labelled, means, with_error
from slater.experiments.task_data import SAMPLE
from slater.jobs.engines import Row
from slater.report.benchmarks import draw_curves, draw_plane
from slater.report.curves import bullets, write_csv
from slater.report.html import Table, write_report

#: of environments; iterations between rollouts while training
FAMILY, CURVE_EVERY = "bullet", 2_500
LIMITS = ("10", "20", "40")
TASKS = ("AntCircle", "AntRun", "BallCircle", "BallRun", "CarCircle", "CarRun", "DroneCircle", "DroneRun")
ALGORITHMS = ("pdca", "pdca:paper", "bc", "bc-safe", "coptidice", "cpq", "cdt", "bcq-lag", "bear-lag")

#: what the published figures are, said wherever they stand
CAVEAT = (
    "Published figures are of other people's code on DSRL's data, means over the limits named; rows of ours "
    "whose data are not DSRL's are normalised by the same constants but come from other data, so they are "
    "not comparable with them cell by cell."
)


@dataclass(frozen=True)
class Effort:
    """A size; limits and data as texts, minutes of one core instead of steps where time decides."""

    tasks: tuple[str, ...]
    limits: tuple[str, ...]
    seeds: int
    steps: int
    episodes: int
    data: str
    minutes: float | None = None


#: quick: the machinery on the sample data, no statement about quality. small: an evening on two cores.
#: paper: the paper's own numbers, on its tasks and CarRun. equal: the same processor time for every method.
BUDGETS: Mapping[str, Effort] = {
    "quick": Effort(("BallCircle",), ("20",), 1, 5_500, 5, SAMPLE),
    "small": Effort(("BallRun", "BallCircle", "CarRun", "CarCircle"), LIMITS, 1, 30_000, 20, "data"),
    "paper": Effort(TASKS[:6], LIMITS, 3, 100_000, 20, "data"),
    "equal": Effort(TASKS, ("5", *LIMITS), 1, 1, 20, "data", 3.0),
}


def write(out: Path, folder: Folder) -> list[Row]:
    """All outputs for the cells of `folder`, into `out`; returns the means by task and algorithm.

    table2.csv (cells), table2-means.csv, table2.md, table2.png/.svg (the plane), curves-limit*.png/.svg,
    report.html.
    """
    flat = labelled(folder.rows)
    average = means(flat, "place", "source", "label")
    stated = facts(flat, folder.left_out)
    write_cells_csv(out / "table2.csv", flat)
    write_csv(out / "table2-means.csv", average)
    draw_plane(
        out / "table2", average, title="Bullet Safety Gym: reward and cost, mean over limits and seeds"
    )
    pictures = {"Reward against cost: left of the line a mixture keeps its limit": out / "table2.svg"}
    curves = curve_means(flat, per_step=False)
    for limit in dict.fromkeys(row["limit"] for row in curves):
        title = f"Limit {limit} per episode, rollouts while training"
        pictures[title] = draw_curves(
            out / f"curves-limit{limit}", [row for row in curves if row["limit"] == limit], title=title,
            cost="per episode",
        )  # fmt: skip
    # tasks whose behaviours do not do the task, in this project's own data
    own = {row["task"] for row in flat if row["source"] == "own"}
    still = [task for task in sorted(own) if not BENCHMARKS[task.lower()].moves]
    found = standings(flat, still)
    answer = sentences(found, differences(flat, found[0].label, still)) if found else []
    if still:
        answer.append(
            f"{', '.join(still)}: left out of these counts, since the policies of the log do not do the "
            "task; its numbers are in the tables."
        )
    tables = {
        "Who is safe, and who is best of those": standings_table(found),
        "Tasks and algorithms": _paper_layout(average),
        "Task by task": _ranking(flat),
        "Beside published figures": _beside_published(average),
        "Limit by limit": _by_limit(means(flat, "place", "source", "label", "limit")),
    }
    parts = [bullets(answer), *(table.markdown() for table in tables.values()), bullets(stated)]
    (out / "table2.md").write_text("\n\n".join(parts) + "\n")
    write_report(
        out / "report.html", "Table 2: Bullet Safety Gym", [*answer, *stated],
        tables | {"All published figures": _published(average)}, pictures,
        [row["command"] for row in folder.rows],
    )  # fmt: skip
    return average


def _cost(value: float) -> str:
    """A normalised cost; marked where it exceeds its limit."""
    return f"**{value:.2f}**" if value > 1.0 else f"{value:.2f}"


def _with_errors(row: Row, runs: int) -> tuple[str, str]:
    """Normalised reward and cost of a row of means over `runs` runs, with their standard errors."""
    return (
        with_error(f"{row['normalised_reward_mean']:.3f}", row["normalised_reward_se"], runs, 3),
        with_error(_cost(row["normalised_cost_mean"]), row["normalised_cost_se"], runs, 2),
    )


def _paper_layout(average: Sequence[Row]) -> Table:
    """Tasks down, algorithms across, R and C each, as in the paper."""
    labels = list(dict.fromkeys(row["label"] for row in average))
    found = {(row["place"], row["label"]): row for row in average}
    rows = []
    for place, source in dict.fromkeys((row["place"], row["source"]) for row in average):
        cells = [place, source]
        for row in (found.get((place, label)) for label in labels):
            cells += [""] * 2 if row is None else [
                f"{row['normalised_reward_mean']:.2f}", _cost(row["normalised_cost_mean"])
            ]  # fmt: skip
        rows.append(cells)
    header = ["Task", "data", *(f"{label} {letter}" for label in labels for letter in ("R", "C"))]
    caption = "R: normalised reward, C: cost / limit, means over limits and seeds; bold: above the limit."
    return Table(header, rows, caption)


def _ranking(flat: Sequence[Row]) -> Table:
    rows, methods = [], by_task(flat)
    for place, limits in limits_of(flat).items():
        here = {label: mine[place] for label, mine in methods.items() if place in mine}
        best = {label: mean_reward(mine) for label, mine in here.items() if safe(mine, limits)}
        names = ", ".join(f"{label} {best[label]:.2f}" for label in sorted(best, key=lambda one: -best[one]))
        rows.append([place, names or "none", f"{len(best)} of {len(here)}"])
    return Table(["Task", "within every limit, by reward", "safe"], rows)


def _beside_published(average: Sequence[Row]) -> Table:
    rows = []
    for row in average:
        theirs, other = [""] * 3, published_for(row["algorithm"], row["place"].partition(" [")[0])
        if other is not None:
            source = f"{STATUS[other.status]}; limits {other.limits}"
            theirs = [f"{other.reward:.2f}", _cost(other.cost), source]
        runs = f"{row['repeats']} (limits {row['limits']}; seeds: {row['seeds']})"
        measured = _with_errors(row, row["repeats"])
        rows.append([row["place"], row["source"], row["label"], *measured, runs, *theirs])
    header = ["Task", "data", "algorithm", "R", "C", "runs", "published R", "published C", "from"]
    return Table(header, rows, f"{CAVEAT}\n\n± is the standard error over runs (limits and seeds together).")


def _by_limit(single: Sequence[Row]) -> Table:
    rows = [
        [
            row["place"], row["source"], row["label"], row["limit"], str(row["seeds"]),
            *_with_errors(row, row["seeds"]),
            f"{row['return_mean']:.1f}", f"{row['cost_mean']:.2f}",
        ]
        for row in single
    ]  # fmt: skip
    header = ["Task", "data", "algorithm", "limit", "seeds", "R", "C", "return", "cost per episode"]
    return Table(header, rows, "± is the standard error over seeds, where there are several.")


def _published(average: Sequence[Row]) -> Table:
    tasks = list(dict.fromkeys(row["place"].partition(" [")[0] for row in average))
    rows = [
        [one.task, one.algorithm, one.limits, f"{one.reward:.2f}", _cost(one.cost), STATUS[one.status]]
        for one in published()
        if one.task in tasks
    ]
    return Table(["Task", "algorithm", "limits", "R", "C", "from"], sorted(rows))
