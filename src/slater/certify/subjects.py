"""What is to be judged: a policy, and all that is known about how it was made."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.data import Dataset, Metadata, ReadOptions
from slater.data import load as load_data
from slater.data.formats.known import is_frame
from slater.data.past import with_history
from slater.disk import digest_of, typed
from slater.errors import InputError
from slater.policy import Contract, Mixture, Policy, load, parts_of
from slater.policy.onnx_policy import OnnxPolicy
from slater.policy.remembering import RememberingPolicy
from slater.runs import Result, SavedRun, is_run, open_run
from slater.runs.held_out import HeldOut, read_held_out
from slater.runs.trained_on import TrainedOn


@dataclass(frozen=True)
class Origin:
    """How a policy was made, as far as it is known: of a function, nothing is.

    costs, limits: names of the costs that its limits are about, in their order, and the limits as given.
    gamma, horizon: discount, and steps of an episode, of its task.
    largest_step_cost: of each cost, in the data that trained it; {} if not known.
    data, reading: where those data were, and how they were read.
    fingerprint, trained_on, held_out: what they were: as a whole, by episode, and what was kept from it.
    kind: what it is, a class of `slater.certify.conformal`; "" if nothing says so.
    like: what columns that are no numbers became in those data, if that is known.
    """

    costs: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    gamma: float | None = None
    horizon: int | None = None
    largest_step_cost: Mapping[str, float] = field(default_factory=dict)
    data: str = ""
    reading: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    trained_on: TrainedOn | None = None
    held_out: HeldOut | None = None
    kind: str = ""
    like: Metadata | None = None

    @classmethod
    def of_contract(cls, contract: Contract) -> Origin:
        """From what a policy file says about itself."""
        try:
            kept = None if contract.held_out is None else typed(HeldOut, contract.held_out)
            trained = TrainedOn.from_text(contract.trained_on) if contract.trained_on else None
        except (TypeError, ValueError, KeyError) as error:
            raise InputError(f"the policy file does not say readably what trained it ({error}).") from error
        return cls(
            contract.costs, contract.limits, contract.gamma, contract.horizon,
            dict(zip(contract.costs, contract.largest_step_cost, strict=False)), contract.data,
            contract.reading, contract.fingerprint, trained, kept, _kind(contract),
            Metadata(
                columns=contract.columns or None, action_names=contract.action_names or None,
                num_actions=contract.num_actions,
            ),
        )  # fmt: skip

    @classmethod
    def of_run(cls, run: SavedRun) -> Origin:
        """From the record of a run whose files say nothing: it does not know costs of steps and episodes."""
        from slater.deep import find

        task, made = run.task, run.run
        return cls(
            task.costs, made.limit_texts, task.gamma, task.horizon, {}, made.data, made.reading,
            made.fingerprint, None, read_held_out(run.folder),
            "clone" if find(made.algorithm, made.preset).imitates else "played",
        )  # fmt: skip

    def read(self, data: Any, told: ReadOptions | None = None) -> Dataset:
        """A log, read as the policy's own if its kind of file is alike; `told`: how else, going before."""
        if isinstance(data, Dataset):
            return data
        if data is None:
            if not self.data or not Path(self.data).exists():
                raise InputError(
                    "give evidence: logged data, an environment to run the policy in, or its own logged "
                    "episodes."
                )
            data = self.data
        # what the policy remembers, it remembers itself (`on_rows`)
        reading = {name: value for name, value in self.reading.items() if name != "history"}
        alike = is_frame(data) or Path(data).suffix == Path(self.data).suffix
        options = ReadOptions.from_json({**(reading if alike else {}), **(told.to_json() if told else {})})
        mapped = () if told is None or told.cost_names else told.columns.get("costs", ())
        if len(mapped) == len(self.costs) == 1:
            options = replace(options, cost_names=self.costs)  # a lone cost is that cost
        elif mapped and self.costs and not {name.removeprefix("cost_") for name in mapped} & set(self.costs):
            raise InputError(
                f"the policy's costs are {', '.join(self.costs)}, and the map names {', '.join(mapped)}: "
                f"rename these, or say --cost-names {' '.join(self.costs)} in the order of the map."
            )
        try:
            return load_data(data, replace(options, like=self.like))
        except InputError as error:
            if (told is not None and told.columns) or "column" not in str(error):
                raise
            raise InputError(f"{error} Map them with --columns (columns= in Python).") from None


def _kind(contract: Contract) -> str:
    """What a lone policy is, by the name of the member that it was (`slater.runs.result.Member.name`)."""
    name = contract.members[0][1] if contract.members else ""
    if contract.imitates or name.startswith("an imitation of "):
        return "clone"
    return "in-sample" if "in-sample " in name else "played"


@dataclass(frozen=True, eq=False)
class LoggedProbability:
    """A policy of which only the probability (or density) of every logged action is known: a column, (N,).

    It cannot act, but a log with propensities can judge it.
    """

    column: NDArray[np.float64]

    def __init__(self, column: ArrayLike) -> None:
        """Numbers from 0, one per row of the log that is to judge."""
        values = np.asarray(column, dtype=np.float64)
        if values.ndim != 1 or not (np.isfinite(values) & (values >= 0)).all():
            raise InputError(
                "the probabilities of logged actions must be one number from 0 per row of the log."
            )
        object.__setattr__(self, "column", values)

    def log_probability(self, observations: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.float64]:
        """Of the rows of the log, all of them, (N,)."""
        if len(observations) != len(self.column):
            raise InputError(
                f"there are {len(self.column)} probabilities of logged actions, and the log that judges has "
                f"{len(observations)} rows; give one for each."
            )
        with np.errstate(divide="ignore"):
            return np.log(self.column)


@dataclass(frozen=True)
class Subject:
    """A policy to be judged, and what is known about it: a name, how it was made, where it lies."""

    policy: Any
    name: str
    origin: Origin = Origin()
    run: SavedRun | None = None
    folder: Path | None = None
    #: of its file as it is now; "" for what is no file
    digest: str = ""

    @property
    def kind(self) -> str:
        """Its class in `slater.certify.conformal`: a mixture of several is one, whatever else is known."""
        several = isinstance(self.policy, Mixture) and len(self.policy.members) > 1
        return "mixture" if several else self.origin.kind

    @property
    def identity(self) -> str:
        """Of what acts, not of the file that it is in: equal for a policy and for a mixture of it alone."""
        parts = self.policy.members if isinstance(self.policy, Mixture) else (self.policy,)
        if not all(hasattr(part, "tensors") for part in parts):
            return self.digest or self.name
        content = hashlib.sha256()
        if isinstance(self.policy, Mixture):
            content.update(np.asarray(self.policy.weights, np.float64).tobytes())
        for part in parts:
            content.update(json.dumps(part.description(), sort_keys=True).encode())
            for name, array in sorted(part.tensors().items()):
                content.update(f"{name} {array.dtype.str} {array.shape}".encode())
                content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()


def find_policy(policy: Any) -> Subject:
    """What a user named, with what is known about it.

    A result, a run's folder, a policy file (.safetensors, .onnx), MODULE:FUNCTION, a policy, or a function
    from observations `(batch, obs_dim)` to actions.
    """
    if isinstance(policy, Subject):
        return policy
    if isinstance(policy, Result):
        if policy.folder is None:
            raise InputError("this result has no folder to read its policy from.")
        policy = policy.folder
    if not isinstance(policy, str | Path):
        if not isinstance(policy, Policy | LoggedProbability) and not callable(policy):
            raise InputError(f"a {type(policy).__name__} is neither a policy nor a function.")
        found = Subject(policy, getattr(policy, "__name__", type(policy).__name__))
        if isinstance(policy, LoggedProbability):  # another column is another policy
            return replace(found, digest=hashlib.sha256(policy.column.tobytes()).hexdigest())
        return _told(found)
    place = Path(policy)
    text = str(policy)
    if not place.exists() and ":" in text and "/" not in text:
        return Subject(_imported(text), text)
    if not place.exists():
        raise InputError(
            f"there is no run or policy file {place}; give a run's folder, a .safetensors or .onnx file, "
            "or MODULE:FUNCTION."
        )
    folder = place if place.is_dir() else place.parent
    run = open_run(folder) if place.is_dir() or is_run(folder) else None
    if run is not None and place.is_dir():
        file = folder / "mixture.safetensors"
        return _told(Subject(run.result.policy, text, Origin(), run, folder, digest_of(file)))
    acting = OnnxPolicy(text) if place.suffix == ".onnx" else load(place)
    return _told(Subject(acting, text, Origin(), run, folder, digest_of(place)))


def on_rows(subjects: Sequence[Subject], data: Dataset) -> tuple[list[Subject], Dataset]:
    """Policies as they act on rows of a log, and that log: its rows have what policies remember."""
    members = [m for s in subjects for m in getattr(s.policy, "members", (s.policy,))]
    first = next((m.history for m in members if isinstance(m, RememberingPolicy)), None)
    if first is None:
        return list(subjects), data
    if any(getattr(member, "history", None) != first for member in members):
        raise InputError("the policies remember different things of an episode; judge them one by one.")
    inside = []
    for subject in subjects:
        policy = subject.policy
        if isinstance(policy, Mixture):
            policy = replace(policy, members=tuple(m.policy for m in policy.members))  # type: ignore[attr-defined]
        inside.append(replace(subject, policy=getattr(policy, "policy", policy)))
    return inside, with_history(data, first)


def _told(subject: Subject) -> Subject:
    """The subject with its origin, by what its file says, else by its run; a lone member acts by itself."""
    contract = getattr(subject.policy, "contract", None)
    origin = Origin()
    if isinstance(contract, Contract):
        origin = Origin.of_contract(contract)
    elif subject.run is not None:
        origin = Origin.of_run(subject.run)
    policy = subject.policy
    if isinstance(policy, Mixture) and len(policy.members) == 1:
        policy = policy.members[0]
    return replace(subject, policy=policy, origin=origin)


def _imported(text: str) -> Any:
    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a user's module lies where the command is given
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{text} cannot be imported ({error}); give MODULE:FUNCTION.") from error
    if not callable(found) and not isinstance(found, Policy):
        raise InputError(f"{text} is a {type(found).__name__}, neither a policy nor a function.")
    return found


def check_fits(policy: Any, data: Dataset) -> None:
    """Refuse data with other observations or actions than the policy takes and gives, where it says them."""
    for _, member in parts_of(policy):
        mean, low = getattr(member, "obs_mean", None), getattr(member, "low", None)
        wrong = ""
        if mean is not None and np.ndim(mean) == 1 and len(mean) != data.observation_dim:
            wrong = f"takes observations of {len(mean)} entries, but the data have {data.observation_dim}"
        elif type(member).__name__ == "CategoricalPolicy":
            count = len(np.asarray(getattr(member, "biases")[-1]))  # noqa: B009 (not of every policy)
            if not data.discrete:
                wrong = "chooses among discrete actions, but those of the data are continuous"
            elif data.num_actions > count:
                wrong = f"chooses among {count} actions, but the data have {data.num_actions} actions"
        elif low is not None and (data.discrete or len(low) != data.action_dim):
            what = "discrete ones" if data.discrete else f"{data.action_dim} entries"
            wrong = f"gives continuous actions of {len(low)} entries, but those of the data have {what}"
        if wrong:
            raise InputError(f"the policy {wrong}.")
