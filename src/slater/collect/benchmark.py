"""The project's twelve datasets, by name: found in a folder, or made there from the behaviours in git.

    data = slater.collect.benchmark("ballcircle")

Behaviours are the files `behaviours/NAME.safetensors` of the repository; a wheel does not contain them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slater.collect.recording import PAPER_WAY, Recording, record_behaviour
from slater.data import Dataset, load, save
from slater.data.remote import data_folder
from slater.errors import InputError


@dataclass(frozen=True)
class Benchmark:
    """A dataset: episodes of each source, the costs per episode that its data are read at, and what to know.

    weakness: what its policies fail to do, in words for whoever chooses a dataset
    moves: whether its policies do the task, so that a limit can bind; the others enter no means
    """

    episodes: int
    limits: tuple[float, ...] = (10.0, 20.0, 40.0)
    weakness: str = ""
    moves: bool = True


#: the datasets; all twelve are to be made in less than half an hour of two cores. Episodes are about as many
#: as in DSRL's file of the task, 360 and 2,000 of cartpole and walker, where the paper has 3,000; fewer where
#: policies do not do the task. Limits are DSRL's; of the Real-World tasks the paper's, its half and double.
BENCHMARKS: dict[str, Benchmark] = {
    "ballrun": Benchmark(
        100,
        weakness=(
            "Its policies either run or crawl, with nothing between: returns above 1,500 cost 90, all "
            "others stay below 520."
        ),
    ),
    "ballcircle": Benchmark(70),
    "carrun": Benchmark(70),
    "carcircle": Benchmark(145),
    "cartpole": Benchmark(40, (25.0, 50.0, 100.0)),
    "dronerun": Benchmark(200),
    "dronecircle": Benchmark(200, weakness="Drones crash after some 165 of 300 steps."),
    "antrun": Benchmark(200),
    "walker": Benchmark(
        200,
        (25.0, 50.0, 100.0),
        weakness=(
            "Its policies walk or fall: the returns of one have standard deviations of 200 and more, and "
            "reward is some six times the cost for all that walk."
        ),
    ),
    "antcircle": Benchmark(
        100,
        weakness=(
            "The ant stands and creeps: returns are -13 to 12, almost no episode costs anything, so no limit"
            " binds. It tests readers, not algorithms."
        ),
        moves=False,
    ),
    "quadruped": Benchmark(
        40,
        (5.0, 10.0, 20.0),
        weakness=(
            "Walking within the limits costs nothing: returns are 996 to 998 at costs of 0 to 11, and below "
            "700 at costs of 900 and more, so no limit binds at the best; a log shows whom to follow."
        ),
    ),
    "humanoid": Benchmark(
        40,
        (5.0, 10.0, 20.0),
        weakness="Its policies do not walk: returns are 0 to 11 of 1,000. It tests readers, not algorithms.",
        moves=False,
    ),
}


def _known(name: str) -> str:
    if name not in BENCHMARKS:
        raise InputError(f"there is no dataset {name!r}; choose from {', '.join(BENCHMARKS)}.")
    return name


def behaviour_path(name: str, folder: str | Path | None = None) -> Path:
    """The behaviour file of a dataset: in `folder`, in SLATER_BEHAVIOURS, or in the repository."""
    given = folder or os.environ.get("SLATER_BEHAVIOURS")
    places = [Path(given)] if given else [Path(__file__).parents[3] / "behaviours", Path("behaviours")]
    for place in places:
        path = place / f"{_known(name)}.safetensors"
        if path.exists():
            return path
    raise InputError(
        f"the behaviours of {name} are not in {' nor in '.join(map(str, places))}; they are in the folder "
        "behaviours of Slater's repository: name its place in SLATER_BEHAVIOURS."
    )


def benchmark(
    name: str,
    folder: str | Path | None = None,
    *,
    behaviours: str | Path | None = None,
    paper: bool = False,
    workers: int = 1,
    progress: Callable[[str, int], None] | None = None,
) -> Dataset:
    """The dataset of that name, read from `folder`, or made there first.

    folder: where it is or will be (default: SLATER_DATA, or the user's cache), as NAME.hdf5
    behaviours: folder of the behaviour files (default: SLATER_BEHAVIOURS, or the repository's)
    paper: recorded in the paper's way (`PAPER_WAY`); that is other data, for a folder of their own
    workers, progress: as in `record_behaviour`, if it has to be made
    """
    path = Path(folder or data_folder()) / f"{_known(name)}.hdf5"
    way = PAPER_WAY if paper else {}
    recording = Recording(episodes=BENCHMARKS[name].episodes, **way)
    if not path.exists():
        data = record_behaviour(
            behaviour_path(name, behaviours), recording, workers=workers, progress=progress
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        save(data, path)
    data = load(path)
    how = json.loads(data.metadata.notes.get("recording", "{}")).get("how", recording.how)
    if how != recording.how:
        raise InputError(
            f"{path} is recorded in the way {how!r}, not {recording.how!r}; take another folder for these."
        )
    return data
