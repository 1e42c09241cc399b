"""The site builds strictly, from the files of the repository alone, and its generated pages are whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytest.importorskip("mkdocs", reason="pip install 'slater-rl[docs]'")


def test_the_site_builds_strictly_and_names_every_command_and_algorithm(tmp_path):
    from slater.cli import COMMANDS
    from slater.deep import algorithms

    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    commands = (tmp_path / "reference" / "commands.html").read_text()
    assert all(f"slater {name}" in commands for name in COMMANDS)
    for name in algorithms():
        page = (tmp_path / "algorithms" / f"{name}.html").read_text()
        assert "gradient iterations" in page, f"the page of {name} lacks its settings"
        assert "{{" not in page
    # it is whole without a network, and its search works from a disk
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(http[^"]*)', page.read_text()
        )
        assert not fetched, f"{page.name}: {fetched}"
    assert "IFrameWorker" in (tmp_path / "assets" / "iframe-worker.js").read_text()
    index = (tmp_path / "search" / "search_index.js").read_text()
    assert len(index) > 100_000
    assert "algorithms/pdca.html" in index
    assert "lab/" not in set(re.findall(r'"location":\s*"(\w+/)', index)), "notes of the lab are not searched"
    # a picture says below itself what it shows
    assert "<figcaption>" in (tmp_path / "index.html").read_text()


def links(page: Path) -> list[str]:
    """Where the links and pictures of a page lead."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))


def test_links_that_the_site_does_not_check_lead_somewhere():
    """Files that GitHub shows beside the site: their links are files; addresses are whole, and encrypted."""
    outside = sorted(ROOT.glob("*.md"))
    for page in (*outside, *(ROOT / "docs").rglob("*.md")):
        for link in links(page):
            if "://" in link:
                address = urllib.parse.urlsplit(link)
                assert address.scheme == "https", f"{page.name}: {link}"
                assert "." in address.netloc, f"{page.name}: {link}"
            elif page in outside and not link.startswith("#"):
                assert (ROOT / link.split("#")[0]).exists(), f"{page.name}: {link}"
