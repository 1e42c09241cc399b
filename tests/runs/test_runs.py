"""Runs on disk: what is read, without JAX, and what is refused in one sentence."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slater
from slater import InputError
from slater.runs import find_runs, open_run, read_result
from slater.runs.metrics import last_step

from .example import RECORD, RESULT, write_run


def test_a_run_is_read_typed(tmp_path):
    saved = open_run(write_run(tmp_path / "run"))
    assert (saved.run.algorithm, saved.run.limit_texts, saved.record.steps) == ("pdca", ("cost=20",), 200)
    assert saved.task.units.horizon == 200
    assert saved.metrics.step == last_step(saved.folder) == 200
    assert saved.metrics.last("eval/") == {"eval/cost": 3.0}
    result = saved.result
    assert result.to_json() == RESULT
    assert result.weights == {"clone of the log": 0.25, "iterate": 0.75}
    assert result.members[0].estimates == {"reward": 1.0, "cost": 2.0}
    assert list(find_runs(tmp_path)) == [tmp_path / "run"]


def test_reading_loads_no_jax(tmp_path):
    write_run(tmp_path)
    code = (
        "import sys; from slater.runs import open_run; r = open_run(sys.argv[1]); r.result; r.metrics; "
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


def test_what_is_no_run_or_not_finished_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="nowhere is not a run: there is no such folder"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"is not a run: it has no run\.json"):
        open_run(tmp_path)
    saved = open_run(write_run(tmp_path, finished=False))
    assert read_result(tmp_path) is None
    with pytest.raises(InputError, match="is not finished"):
        _ = saved.result


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


def mutated(data, record):
    """`record` with one value, at any depth, replaced or removed."""
    record = copy.deepcopy(record)
    place = record
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
            place = inner
            continue
        if isinstance(place, dict) and data.draw(st.booleans()):
            del place[key]
        else:
            place[key] = data.draw(json_values)
        return record


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_records_are_read_or_refused_in_one_sentence(tmp_path, data):
    write_run(tmp_path)
    name, record = data.draw(st.sampled_from([("run.json", RECORD), ("result.json", RESULT)]))
    (tmp_path / name).write_text(json.dumps(mutated(data, record)))
    try:
        saved = open_run(tmp_path)
        assert saved.run.seed >= 0
        assert saved.result.to_json()
        assert isinstance(saved.record.steps, int)
    except InputError as error:
        words = str(error)
    else:
        words = ""
    assert "\n" not in words


def test_estimates_that_failed_their_check_do_not_say_that_limits_are_kept(tmp_path):
    assert open_run(write_run(tmp_path / "a")).result.status == "within"
    doubted = {**RESULT, "trusted": False, "limit_status": {"cost": "not known"}}
    result = open_run(write_run(tmp_path / "b", result=doubted)).result
    assert result.status == "not known"
    assert "not known, by estimates that failed their check" in str(result)
    above = {**doubted, "limit_status": {"cost": "above"}}
    assert "ABOVE" in str(open_run(write_run(tmp_path / "c", result=above)).result)
    for wrong in ({"cost": "fine"}, {}, {"other": "within"}, ["within"]):
        write_run(tmp_path / "d", result={**RESULT, "limit_status": wrong})
        with pytest.raises(InputError, match=r"result\.json is not readable"):
            open_run(tmp_path / "d").result.status  # noqa: B018


def test_what_a_mixture_means_for_single_episodes_is_said_where_it_is_described(tmp_path):
    """Shares by member, and in how many episodes a policy acts that is above the limit by itself."""
    members = [
        {"step": 100, "kind": "iterate", "weight": 0.25, "estimates": {"reward": 3.0, "cost": 10.0}},
        {"step": 200, "kind": "iterate", "weight": 0.75, "estimates": {"reward": 1.0, "cost": 1.0}},
    ]
    result = open_run(write_run(tmp_path / "a", result={**RESULT, "members": members})).result
    sentence = "in 25% of the episodes a policy acts whose mean cost is above the limit by its estimate"
    for text in (str(result), result._repr_html_(), "\n".join(result.judged())):
        assert sentence in text
    assert "75% the policy after 200 steps, 25% the policy after 100 steps" in result.describe_mixture()
    safe = [{**members[0], "estimates": members[1]["estimates"]}, members[1]]
    result = open_run(write_run(tmp_path / "b", result={**RESULT, "members": safe})).result
    assert result.single_episodes() == []


def test_the_environment_is_the_runs_own_else_the_one_that_its_data_name(tmp_path):
    write_run(tmp_path)
    assert open_run(tmp_path).env is None
    (tmp_path / "run.json").write_text(json.dumps({**RECORD, "env_id": "bullet/BallCircle"}))
    assert open_run(tmp_path).env == "bullet/BallCircle"
    own = {**RECORD, "env_id": "bullet/BallCircle", "run": {**RECORD["run"], "env": "bullet/BallRun"}}
    (tmp_path / "run.json").write_text(json.dumps(own))
    assert open_run(tmp_path).env == "bullet/BallRun"


def test_nobody_else_reads_the_files_of_a_run():
    names = ("run.json", "result.json", "metrics.jsonl", "evaluations.jsonl")
    root = Path(slater.__file__).parent
    for path in root.rglob("*.py"):
        if path.parent.name != "runs":
            for name in names:
                assert f'/ "{name}"' not in path.read_text(), f"{path} reads {name} by hand"
