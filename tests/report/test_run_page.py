"""`slater report` and `slater export` on real runs: what the page says, how it looks, what acts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import slater.deep as deep
from slater.certify.bounds import Interval
from slater.certify.verdict import Certificate, LimitVerdict
from slater.cli import main
from slater.data import save
from slater.disk import digest_of
from slater.policy import load
from slater.runs import open_run
from slater.runs.evaluations import Evaluation, add_evaluation
from slater.runs.folder import kept_path

from ..deep.problems import PDCA_QUICK, QUICK, pointmass

#: one run of two costs for all, and the default on the data for which that process has compiled it
pytestmark = pytest.mark.xdist_group("pdca")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "run"
    data, options = pointmass(costs=2), {"log_every": 10, "estimate": True}
    deep.train("pdca", data, ["5", "4"], out, preset="paper", options=options, **QUICK)
    return out


def test_a_report_says_what_the_run_knows(folder, capsys):
    assert main(["report", str(folder)]) == 0
    assert "report.html" in capsys.readouterr().out
    text = (folder / "report.html").read_text()
    for part in ("Limits in all units", "Reward and c1", "Losses", "batch_size", "c0"):
        assert part in text, part
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_several_runs_stand_beside_each_other(folder, tmp_path, capsys):
    assert main(["report", str(folder), str(folder), "--out", str(tmp_path / "both.html")]) == 0
    assert (tmp_path / "both.html").read_text().count("Limits in all units") == 2


def test_a_report_shows_the_log_what_was_measured_and_what_another_limit_would_cost(tmp_path, capsys):
    data = pointmass()
    save(data, tmp_path / "log.hdf5")
    out = tmp_path / "run"
    deep.train("pdca", data, ["5"], out, options={"data": str(tmp_path / "log.hdf5")}, **PDCA_QUICK)
    assert main(["report", str(out)]) == 0
    plain = (out / "report.html").read_text()
    assert plain.count("an episode of the log") == 1
    assert plain.count("a logged episode") == 40
    assert "40 episodes." in plain
    assert "What another limit would cost" in plain
    assert "measured" not in plain
    ran = Evaluation(
        "mixture", "toy", 7, 0, False, None, {"return": 3.0, "c0": 4.0}, {"return": 0.25, "c0": 0.5},
        {"c0": {"episode": 4.0}}, digest_of(out / "mixture.safetensors"),
    )  # fmt: skip
    add_evaluation(out, ran)
    assert main(["report", str(out), str(out), "--out", str(tmp_path / "two.html")]) == 0
    both = (tmp_path / "two.html").read_text()
    assert "3.00 ± 0.25" in both
    assert "± 0.50, within" in both
    assert "4.00 ± 0.50, within" in both
    assert "7 episodes in toy" in both
    assert "Reward and c0 of every run" in both
    # a kept policy that was measured stands beside its estimate, as long as it is the one that was measured
    file = kept_path(out, open_run(out).result.members[0].step)
    for digest, told in (("of before", False), (digest_of(file), True)):
        means = {"return": 1.5, "c0": 2.25}
        add_evaluation(
            out, Evaluation(file.name, "toy", 2, 0, False, None, means, dict.fromkeys(means), digest=digest)
        )
        assert main(["report", str(out)]) == 0
        page = (out / "report.html").read_text()
        assert ("measured: c0 2.25, reward 1.5" in page) == told
        assert ("the same policy, measured" in page) == told
    assert f"numpy {np.__version__}" in page
    assert main(["report", str(out), "--data", str(tmp_path / "none.hdf5")]) == 2
    assert "no file" in capsys.readouterr().err


def test_bad_folders_get_a_sentence(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--onnx", str(tmp_path / "p.onnx")]) == 2
    assert "is not a run" in capsys.readouterr().err


def test_the_page_fits_a_phone_and_a_dark_screen(folder, browser):
    main(["report", str(folder)])
    browser.set_window_size(400, 800)
    browser.get(f"file://{folder / 'report.html'}")
    width = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1]
    assert browser.execute_script("return document.querySelectorAll('svg').length") >= 3
    colour = (
        "return [getComputedStyle(document.querySelector(\"svg [stroke='#1b4f72']\")).stroke, "
        "getComputedStyle(document.body).backgroundColor]"
    )
    assert browser.execute_script(colour) == ["rgb(27, 79, 114)", "rgb(255, 255, 255)"]
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        assert browser.execute_script(colour) == ["rgb(127, 179, 213)", "rgb(23, 32, 42)"]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_an_exported_run_acts_as_its_mixture(folder, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    file = tmp_path / "policy.onnx"
    assert main(["export", str(folder), "--onnx", str(file)]) == 0
    mixture, obs = load(folder / "mixture.safetensors"), pointmass().observations[:50].astype(np.float32)
    session = onnxruntime.InferenceSession(str(file))
    for index, member in enumerate(mixture.members):
        (action,) = session.run(
            None, {"observation": obs, "noise": np.zeros((50, 2), np.float32), "member": np.array(index)}
        )
        mean = member.act(obs, rng=np.random.default_rng(0), deterministic=True)
        np.testing.assert_allclose(action, mean, atol=1e-6)
    about = json.loads({p.key: p.value for p in onnx.load(file).metadata_props}["slater"])
    assert about["limits"] == ["c0=5", "c1=4"]
    first, second = about["contract"]["observations"]
    assert (first["name"], second["name"]) == ("observation 0", "observation 1")
    assert first["low"] < first["high"]
    assert "verdict" not in about  # nobody has asked for one
    certificate = {"verdict": "pass", "sentence": "It keeps its limits.", "confidence": 0.95}

    def exported(policy, record):
        (folder / "certificate.json").write_text(json.dumps(record))
        try:
            assert main(["export", str(policy), "--onnx", str(file)]) == 0
        finally:
            (folder / "certificate.json").unlink()
        return json.loads({p.key: p.value for p in onnx.load(file).metadata_props}["slater"])

    capsys.readouterr()
    judged = {**certificate, "digest": digest_of(folder / "mixture.safetensors")}
    assert exported(folder, judged)["verdict"] == certificate
    assert "warning" not in capsys.readouterr().err
    # the verdict on the mixture is none on the last policy, nor on what the run has become since
    assert "verdict" not in exported(folder / "policy.safetensors", judged)
    assert "is of another policy than" in capsys.readouterr().err
    assert "verdict" not in exported(folder, {**judged, "digest": "of before"})
    assert "is of another policy than" in capsys.readouterr().err
    assert "verdict" not in exported(folder, certificate)  # of before certificates said whose they are


def test_a_report_says_whether_a_certificate_is_of_the_mixture(folder, tmp_path, capsys):
    limit = LimitVerdict.of("c0", 5.0, Interval(1.0, 0.5, 2.0), "rollouts")
    said = Certificate("a run", 0.95, (limit,), evidence_from="luck.")
    page = tmp_path / "page.html"
    words = "not of the mixture that the run has now"
    try:
        for digest, warned in ((digest_of(folder / "mixture.safetensors"), False), ("of before", True)):
            replace(said, digest=digest).save(folder / "certificate.json")
            assert main(["report", str(folder), "--out", str(page)]) == 0
            assert (words in page.read_text()) == warned
            assert page.read_text().count(said.sentence) == (1 if warned else 2)
        (folder / "certificate.json").write_text(json.dumps({"sentence": "half of one"}))
        assert main(["report", str(folder), "--out", str(page)]) == 2
        assert "not readable as a certificate" in capsys.readouterr().err
    finally:
        (folder / "certificate.json").unlink()
