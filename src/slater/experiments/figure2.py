"""Figure 2 of the paper: Real-World RL, reward and cost against iterations, PDCA and COptiDICE.

The paper's protocol: limits .05 (cartpole, walker) and .01 (quadruped, humanoid) on the mean cost per step,
30,000 iterations (humanoid 50,000), the present policy run for 5 episodes every 1,000 iterations, standard
errors over seeds. The paper calls its limits discounted sums; .05 and .01 make sense per step only, so the
cost drawn is that of an episode divided by its 1,000 steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slater.envs.constraints import DOMAINS
from slater.experiments.suite import Folder, write_cells_csv
from slater.experiments.table2 import Effort
from slater.experiments.tables import curve_means, facts, labelled, means, with_error
from slater.jobs.engines import Row
from slater.report.benchmarks import draw_curves
from slater.report.curves import bullets, write_csv
from slater.report.html import Table, write_report

#: of environments; iterations between rollouts while training
FAMILY, CURVE_EVERY = "rwrl", 1_000
ALGORITHMS = ("pdca", "pdca:paper-rwrl", "coptidice")

#: task -> the paper's limit, on the mean cost of a step
LIMITS: Mapping[str, tuple[str, ...]] = {
    name: (f"{domain.paper_limit:g}/step",) for name, domain in DOMAINS.items()
}

BUDGETS: Mapping[str, Effort] = {
    "quick": Effort(("cartpole",), (), 1, 5_500, 2, "data"),
    "small": Effort(("cartpole", "walker"), (), 1, 30_000, 5, "data"),
    "paper": Effort(("cartpole", "walker", "quadruped", "humanoid"), (), 5, 30_000, 5, "data"),
}

#: the paper prints no numbers for its figure, only these words
WORDS = {
    "cartpole": "PDCA outperforms COptiDICE",
    "walker": "PDCA requires more iterations to converge, comparable",
    "quadruped": "comparable rewards, COptiDICE tends to violate the constraint",
    "humanoid": "PDCA is comparable to COptiDICE",
}
CAVEAT = (
    "The paper's figure has no numbers to put beside these; the last column is what its text says, about its "
    "own data (SAC for a million steps per penalty). The data here are those named above."
)


def write(out: Path, folder: Folder) -> list[Row]:
    """All outputs for the cells of `folder`, into `out`; returns the final means by task and algorithm.

    figure2.csv (cells), figure2-curves.csv, figure2.md, figure2.png/.svg, report.html.
    """
    flat = labelled(folder.rows)
    curves = curve_means(flat, per_step=True)
    final = means(flat, "place", "source", "label", "limit")
    stated = facts(flat, folder.left_out)
    write_cells_csv(out / "figure2.csv", flat)
    write_csv(out / "figure2-curves.csv", curves)
    picture = draw_curves(out / "figure2", curves, title="Real-World RL suite", cost="per step")
    table = _final(final)
    (out / "figure2.md").write_text(f"{bullets(stated)}\n\n{table.markdown()}\n")
    write_report(
        out / "report.html", "Figure 2: Real-World RL suite", stated, {"What came out": table},
        {"While training": picture}, [row["command"] for row in folder.rows],
    )  # fmt: skip
    return final


def _final(final: Sequence[Row]) -> Table:
    rows = []
    for row in final:
        seeds = row["seeds"]
        cost = with_error(f"{row['cost_per_step_mean']:.4f}", row["cost_per_step_se"], seeds, 4)
        rows.append(
            [
                row["place"], row["source"], row["label"], row["limit"], str(seeds),
                with_error(f"{row['return_mean']:.1f}", row["return_se"], seeds, 1),
                f"**{cost}**" if row["normalised_cost_mean"] > 1.0 else cost,
                WORDS[row["place"].partition(" [")[0]],
            ]
        )  # fmt: skip
    header = [
        "Task", "data", "algorithm", "limit", "seeds", "reward per episode", "cost per step", "in the paper"
    ]  # fmt: skip
    caption = "The algorithm's output (its mixture) at the end; ± over several seeds; bold: above the limit."
    return Table(header, rows, f"{CAVEAT}\n\n{caption}")
