"""A run on disk, without JAX: its record, its metrics, its result. Everybody reads runs through here.

run.json                 `Record`: the `Run` that defines it, its settings as they were decided, its task
metrics.jsonl            `Metrics`: one JSON object per line, readable while the run goes on
result.json              `Result`: what came out, when the run is finished, with its `Member`s
mixture.safetensors      the policy (`slater.policy.load`); policy.safetensors: the last one alone
members/, checkpoint.safetensors   what `slater.deep.engine` needs to go on
"""

from slater.limit_status import LimitStatus
from slater.runs.folder import SavedRun, find_runs, is_run, open_run
from slater.runs.metrics import Metrics, MetricsFile, read_metrics
from slater.runs.record import Record, Run, TaskRecord, read_run
from slater.runs.result import LimitRecord, Member, Result, read_result

__all__ = [
    "LimitRecord",
    "LimitStatus",
    "Member",
    "Metrics",
    "MetricsFile",
    "Record",
    "Result",
    "Run",
    "SavedRun",
    "TaskRecord",
    "find_runs",
    "is_run",
    "open_run",
    "read_metrics",
    "read_result",
    "read_run",
]
