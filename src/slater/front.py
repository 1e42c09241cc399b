"""The verbs of the front door, `slater.train` and `slater.evaluate`: one call each, a path is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slater.errors import InputError

if TYPE_CHECKING:
    from slater.envs import Rollout
    from slater.limits import Limits
    from slater.policy import Mixture, Policy, SavedPolicy
    from slater.runs import Result, SavedRun


def train(
    data: Any,
    algorithm: str = "pdca",
    limits: Limits = (),
    *,
    out: str | Path | None = None,
    seed: int = 0,
    preset: str | None = None,
    progress: bool = True,
    estimate: bool = True,
    columns: Mapping[str, str | Sequence[str]] | Sequence[str] | None = None,
    hold_out: float | None = None,
    history: bool = False,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Learn a policy from logged data under cost limits.

    data: a file or store that `slater.load` reads, the name of a published task, a dataset, or a pandas,
    Polars or Arrow table.
    limits: one per cost: 20 or "20" (per episode), "5/discounted", "0.05/step", "NAME=20", a `Limit`, a list
    of these, or a dict by the names of the costs, as {"wear": 20, "heat": "0.05/step"}.
    out: the folder of the run; by default a new one below `runs/`.
    progress: show it, on a terminal, in a notebook or as plain lines.
    estimate: judge the policy by the shared estimators at the end, where the algorithm does not itself.
    options: fields of `slater.runs.Run`, such as `log_every` or `memory` (GB).
    columns: which column of a table is which, as in `slater.load`; kept in the run.
    hold_out: share of the episodes that are kept from training so that `slater.certify` can judge by them, as
    0.2; the same for every seed, remembered in the run.
    history: let the policy remember its episode (`slater.history`): for logs whose past matters.
    settings: the algorithm's own, by name (`steps`, `gamma`, ...).

    The result has the policy, the estimates from the data alone, the limits, warnings, and the folder;
    `print(result)` shows them, which progress does not do. A run that was stopped goes on with
    `slater.deep.resume(folder, data)`.
    """
    from slater.data import load
    from slater.data.formats.base import ReadOptions, read_options
    from slater.data.formats.known import is_frame
    from slater.deep import Watcher
    from slater.deep import train as train_into
    from slater.deep.engine.progress import shown
    from slater.deep.engine.sources import open_for_training
    from slater.runs.folder import folder_for

    chosen = {"estimate": estimate, **(options or {})}
    if history:
        chosen["reading"] = {**chosen.get("reading", {}), "history": True}
    name = algorithm
    if isinstance(data, str | Path):
        name = f"{algorithm}-{Path(data).stem}"
        chosen.setdefault("data", str(data))
        if columns is not None:
            chosen["reading"] = {**chosen.get("reading", {}), **read_options(columns).to_json()}
        data = open_for_training(data, float(chosen.get("memory", 4.0)), chosen.get("reading"))
    elif is_frame(data):
        chosen.setdefault("data", f"a {type(data).__name__}")
        told = {**chosen.get("reading", {}), **read_options(columns).to_json()}
        data = load(data, ReadOptions.from_json(told))
    elif columns is not None:
        raise InputError("columns are for a file or a frame; the data given are a dataset already.")
    watcher = shown(result=False) if progress else Watcher()
    with folder_for(out, name) as folder:
        return train_into(
            algorithm, data, limits, folder, seed=seed, preset=preset, hold_out=hold_out, watcher=watcher,
            options=chosen, **settings,
        )  # fmt: skip


def evaluate(
    policy: Result | str | Path | Policy,
    env: str | None = None,
    *,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = False,
    workers: int = 1,
    discount: float | None = None,
) -> Rollout:
    """Run a policy in an environment.

    policy: a result, the folder of a run, a policy file, or a policy. env: as in `slater.envs.make`; by
    default the one that the run or its data name. discount: by default the run's own, else .99. What is
    measured is kept with the run.
    """
    from slater.envs import rollout
    from slater.runs import Result
    from slater.runs.evaluations import Evaluation, add_evaluation
    from slater.runs.folder import run_of

    saved: SavedRun | None = None
    given = policy.folder if isinstance(policy, Result) else policy
    place = Path(given) if isinstance(given, str | Path) else None
    acting: Any = policy
    if place is not None:
        acting, saved = load_policy(place), run_of(place)
        if saved is not None:
            env, discount = env or saved.env, saved.task.gamma if discount is None else discount
    if env is None:
        raise InputError("name the environment: neither the run nor its data say which one it is.")
    ran = rollout(
        acting, env, episodes=episodes, seed=seed, deterministic=deterministic, workers=workers,
        discount=_discount(acting) if discount is None else discount,
    )  # fmt: skip
    if saved is not None and place is not None:
        name = "mixture" if place.is_dir() or place.stem == "mixture" else place.name
        file = place / "mixture.safetensors" if place.is_dir() else place
        add_evaluation(saved.folder, Evaluation.of(name, file, ran, saved.task, None))
    return ran


def _discount(policy: Any) -> float:
    """That of the run which made a policy, where its file says so."""
    contract = getattr(policy, "contract", None)
    return 0.99 if contract is None else float(contract.gamma)


def load_policy(path: str | Path) -> SavedPolicy | Mixture:
    """The policy in a file, or the mixture of the run in a folder; NumPy alone."""
    from slater.policy import load
    from slater.runs import open_run

    place = Path(path)
    if not place.exists():
        raise InputError(f"there is no run or policy file {place}.")
    return open_run(place).result.policy if place.is_dir() else load(place)
