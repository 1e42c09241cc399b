"""`slater.plot`: a log, a run, a frontier or a certificate as a picture, in a notebook or in a file."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from slater.errors import InputError
from slater.limits import Limits

#: Episodes of a log that are drawn, at most, evenly spaced.
_DRAWN = 2000


@dataclass(frozen=True)
class Picture:
    """A page of HTML that needs nothing else: a notebook shows it, `save` writes it to a file."""

    title: str
    page: str
    height: int = 560

    def save(self, path: str | Path) -> Path:
        """Write the page to a file that a browser opens."""
        Path(path).write_text(self.page, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        # in a frame of its own, so that its colours and the notebook's do not mix
        return (
            f'<iframe srcdoc="{escape(self.page, quote=True)}" title="{escape(self.title, quote=True)}" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<Picture: {self.title}; .save('page.html') writes it>"


def plot(what: Any, limits: Limits | None = None) -> Picture:
    """Draw a dataset, a result (or the folder of a run), a frontier or a certificate.

    limits: drawn into the picture of a dataset, one per cost, as in `slater.train`.
    """
    from slater.certify.frontier import Frontier
    from slater.certify.verdict import Certificate
    from slater.data import Dataset
    from slater.report.certificate import certificate_html
    from slater.report.frontier import frontier_html
    from slater.runs import Result, SavedRun, open_run

    if isinstance(what, Dataset):
        return _log(what, limits)
    if limits is not None:
        raise InputError("limits are drawn into the picture of a dataset; a run has its own.")
    if isinstance(what, Certificate):
        return Picture(what.sentence, certificate_html(what))
    if isinstance(what, Frontier):
        return Picture(f"what limits on {', '.join(what.cost_names)} cost", frontier_html(what))
    if isinstance(what, str | Path):
        what = open_run(Path(what))
    if isinstance(what, Result):
        what = None if what.folder is None else open_run(what.folder)
    if not isinstance(what, SavedRun):
        raise InputError("plot draws a dataset, a result, the folder of a run, a frontier or a certificate.")
    return _run(what)


def _log(data: Any, limits: Limits | None) -> Picture:
    """Every episode of a log: cost to the right, reward upwards, one picture per cost."""
    from slater.data.frames import sentence
    from slater.limits import Units, resolve_limits
    from slater.report.pages import page
    from slater.report.run_plots import PALE, frame
    from slater.report.svg import thinned

    given: list[float] = []
    if limits is not None:
        units = Units(0.99, data.horizon)
        given = [units.episode(x) for x in resolve_limits(limits, data.cost_names, data.metadata.step)]
    episodes, parts = data.episodes, []
    chosen = thinned(len(episodes), _DRAWN)
    returns = episodes.returns[chosen].tolist()
    for index, name in enumerate(data.cost_names):
        costs = episodes.costs[chosen, index].tolist()
        picture = frame([*costs, *given[index : index + 1]], returns, (f"{name} of an episode", "reward"))
        for episode, x, y in zip(chosen, costs, returns, strict=True):
            picture.dot(x, y, PALE, f"episode {episode}: {name} {x:.4g}, reward {y:.4g}", radius=3, alpha=0.8)
        if given:
            picture.mark_limit(given[index])
        parts.append(f"<h3>Reward and {escape(name)}</h3>{picture.svg()}")
    title = sentence(data)
    return Picture(title, page(title, f"<p>{escape(title)}</p>{''.join(parts)}"))


def _run(run: Any) -> Picture:
    """What a run learned beside its log, and how it got there."""
    from slater.report.pages import page
    from slater.report.run_plots import Beside, curves, plane
    from slater.runs.log import judged_sums, load_log

    beside = Beside()
    if Path(run.run.data).exists():
        log = load_log(run.run)
        if set(run.task.costs) <= set(log.cost_names):
            beside = Beside(*judged_sums(log, run.task.costs))
    planes = [plane(run, index, beside) for index in range(len(run.task.costs)) if run.finished]
    title = f"{run.run.algorithm} in {run.folder}"
    return Picture(
        title, page(title, f"<h2>{escape(title)}</h2>{''.join(planes)}{curves(run, 'eval/', 'lambda')}")
    )
