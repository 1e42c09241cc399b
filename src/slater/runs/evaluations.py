"""What was measured about a run's policies in an environment, kept with the run, apart from its estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slater.disk import append_json_line, digest_of, read_json_lines, typed
from slater.limit_status import LimitStatus
from slater.limits import Limit

if TYPE_CHECKING:
    from slater.envs import Rollout
    from slater.runs.record import TaskRecord

#: name of the file in the folder of a run: one JSON object per line
EVALUATIONS = "evaluations.jsonl"


@dataclass(frozen=True)
class Evaluation:
    """Episodes of one policy of a run in an environment.

    policy: "mixture", "last", or the file of a kept one; limits: those aimed at, per episode, if others than
    the run's; means, errors: of return and costs over episodes, undiscounted, by name; an error is None where
    there was one episode
    units: cost -> unit of a limit -> what the episodes cost in it, as `Rollout.measured` has it
    cut_short: episodes that the environment's time limit ended before those of the data would
    digest: of the policy's file as it was, since a run that is extended has another; "" if not known
    """

    policy: str
    env: str
    episodes: int
    seed: int
    deterministic: bool
    limits: Mapping[str, float] | None
    means: Mapping[str, float]
    errors: Mapping[str, float | None]
    units: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    digest: str = ""
    cut_short: int = 0

    def status(self, limit: Limit) -> LimitStatus:
        """Whether the episodes kept `limit` on average, in its unit; as `Rollout.status`."""
        trusted = limit.unit != "episode" or not self.cut_short
        value = self.units.get(str(limit.cost), {}).get(limit.unit)
        return LimitStatus.by_estimate(value, limit.value, trusted=trusted)

    def same_as(self, other: Evaluation) -> bool:
        """Whether it measures the same thing in the same way."""
        names = ("policy", "env", "episodes", "seed", "deterministic", "limits", "digest")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    @classmethod
    def of(
        cls, policy: str, file: Path, ran: Rollout, task: TaskRecord, limits: Mapping[str, float] | None
    ) -> Evaluation:
        """What `rollout` gave for the policy in `file`."""
        from slater.envs.episode import is_scalar_cost

        found = ran.summary()
        scalar = is_scalar_cost(task.costs, ran.cost_names)
        values = {"return": found["return"]}
        values |= {cost: found["cost" if scalar else f"costs/{cost}"] for cost in task.costs}
        errors = {name: x.standard_error if len(ran) > 1 else None for name, x in values.items()}
        measured = {cost: ran.measured(cost, task.horizon) for cost in task.costs}
        return cls(
            policy, ran.env_id, len(ran), ran.seed, ran.deterministic,
            limits=None if limits is None else dict(limits),
            means={name: summary.mean for name, summary in values.items()}, errors=errors,
            units={cost: {str(k): v for k, v in x.items()} for cost, x in measured.items()},
            digest=digest_of(file), cut_short=ran.cut_short(task.horizon),
        )  # fmt: skip


def add_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Add a line to the run's file."""
    append_json_line(folder / EVALUATIONS, asdict(evaluation))


def read_evaluations(folder: Path) -> list[Evaluation]:
    """All evaluations of the run in `folder`, oldest first; of two of the same thing, the later one."""
    found: list[Evaluation] = []
    for row in read_json_lines(folder / EVALUATIONS):
        try:
            evaluation: Evaluation = typed(Evaluation, row)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # of another version
        found = [*(other for other in found if not other.same_as(evaluation)), evaluation]
    return found
