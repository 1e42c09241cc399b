"""Every block of code in the docs: Python is run, page by page; commands are read by the command line."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import re
import tomllib

import pytest

import slater
from slater.data import save
from slater.data.samples import room

from .deep.problems import pointmass
from .docs_code import LANGUAGES, PAGES, ROOT, blocks, commands, problem_of, refuse_to_run

RUN = [page for page in PAGES if any(block.language in ("python", "doctest") for block in blocks(page))]
#: a training in the docs is that of bc with these settings, once its own names have been looked up
QUICK = {"steps": 20, "hidden": (8,), "batch_size": 16, "progress": False, "estimate": False}


def test_every_block_says_what_it_is_and_commands_are_ones_that_slater_takes(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    refuse_to_run(monkeypatch)
    problems = []
    checked = 0
    for page in PAGES:
        for block in blocks(page):
            if block.language not in LANGUAGES:
                problems.append(f"{block.place}: {block.language!r} is none of {', '.join(LANGUAGES)}")
            if block.language == "json":
                json.loads(block.text)
            if block.language == "toml":
                tomllib.loads(block.text)
            if block.language != "bash" or block.title.startswith("not run"):
                continue
            for words in commands(block):
                checked += 1
                if problem := problem_of(words, capsys):
                    problems.append(f"{block.place}: {' '.join(words)}: {problem}")
    assert not problems, "\n".join(problems)
    assert checked > 100
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with what the pages take for granted: a log, a run on it, episodes of its policy."""
    folder = tmp_path_factory.mktemp("docs")
    data = pointmass(episodes=40)
    save(data, folder / "log.hdf5")
    save(data, folder / "pilot.hdf5")
    slater.train(data, "bc", limits=["20"], out=folder / "runs" / "first", **QUICK)
    columns = ["observations=indoor,outdoor", "actions=power", "rewards=comfort", "costs=energy"]
    heated = slater.load(room(), columns=[*columns, "episode=day"])
    slater.train(heated, "bc", limits=["15"], out=folder / "runs" / "room", **QUICK)
    return folder


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs_from_top_to_bottom(page, world, monkeypatch, tmp_path):
    monkeypatch.chdir(world)
    monkeypatch.syspath_prepend(str(world))
    train = slater.train

    def quickly(data, algorithm="pdca", limits=(), **rest):
        from slater.deep.algorithms.registry import find, make_config
        from slater.limits import resolve_limits

        loaded = slater.load(data) if isinstance(data, str) else data
        resolve_limits(limits, loaded.cost_names)
        known = {"out", "seed", "preset", "progress", "estimate", "columns", "options"}
        make_config(find(algorithm), {k: v for k, v in rest.items() if k not in known})
        out = rest.get("out") or tmp_path / "run"
        return train(loaded, "bc", limits, out=out, **QUICK)

    monkeypatch.setattr(slater, "train", quickly)
    names = {"__name__": "__main__"}
    for block in blocks(page):
        if block.title.startswith("not run"):
            continue
        if block.title.endswith((".py", ".csv")):
            (world / block.title).write_text(block.text)
        elif block.language == "python":
            for module in ("pybullet", "dm_control"):
                if {"pybullet": "bullet/", "dm_control": "rwrl/"}[module] in block.text:
                    pytest.importorskip(module)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, block.place, "exec"), names)
        elif block.language == "doctest":
            test = doctest.DocTestParser().get_doctest(block.text, names, block.place, str(page), block.line)
            said = io.StringIO()
            doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.write)
            assert not said.getvalue(), said.getvalue()


def test_every_metric_of_an_algorithm_is_explained_on_its_page():
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from slater.deep import algorithms
    from slater.deep.algorithms.registry import find, make_algorithm
    from slater.deep.batches import on_device

    missing = []
    for name, preset in [*((name, None) for name in algorithms()), ("pdca", "paper")]:
        kind = find(name, preset)
        data = pointmass(episodes=6, length=10, discrete="continuous" not in kind.actions)
        algorithm = make_algorithm(name, {"steps": 200, "hidden": (8,), "batch_size": 4}, preset)
        algorithm = type(algorithm)(algorithm.config_for(data))
        task = algorithm.task(data, ["5"])
        algorithm = algorithm.informed(data, task)
        device = algorithm.data(data, task, on_device(data, task))
        key, step, phases = jax.random.key(0), 0, set()
        state = eqx.filter_eval_shape(lambda key, a=algorithm, t=task: a.init(t, key), key)
        page = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
        while step < algorithm.config.steps:
            phase, step = algorithm.phase(step)
            if phase in phases:
                continue
            phases.add(phase)

            def metrics(device, state, a=algorithm, t=task, phase=phase):
                key = jax.random.key(0)
                return a.update(t, state, a.draw(t, device, key), key, jnp.asarray(0), phase)[1]

            found = eqx.filter_eval_shape(metrics, device, state)
            # what there is one of for each cost or head is explained once
            named = {m: re.sub(r"_\d+$", "_K", m.replace("c0", "COST")) for m in found}
            missing += [f"{name}: {m}" for m in found if f"`{named[m]}`" not in page]
    assert not missing


def test_a_page_of_every_algorithm_is_in_the_nav():
    from slater.deep import algorithms

    nav = (ROOT / "mkdocs.yml").read_text()
    assert [name for name in algorithms() if f"algorithms/{name}.md" not in nav] == []
