"""Progress without a terminal: plain lines, now and then."""

import io

from rich.console import Console

from slater.progress import PlainLive, PlainProgress


def test_a_pipe_gets_a_plain_line_now_and_then():
    pipe = io.StringIO()
    with PlainProgress(console=Console(file=pipe), transient=True, every=0.0) as progress:
        task = progress.add_task("cells", total=4, count="")
        progress.update(task, completed=1, count="1/4 cells")
        progress.advance(task)
    lines = pipe.getvalue().splitlines()
    assert lines[0].startswith("cells: 1 of 4 (25%)")
    assert lines[0].endswith("1/4 cells")
    assert lines[1].startswith("cells: 2 of 4 (50%)")


def test_no_line_before_its_time():
    pipe = io.StringIO()
    with PlainProgress(console=Console(file=pipe), transient=True) as progress:
        progress.advance(progress.add_task("cells", total=4))
    assert pipe.getvalue() == ""


def test_a_live_table_is_printed_anew_in_a_pipe():
    pipe = io.StringIO()
    with PlainLive(console=Console(file=pipe), every=0.0) as live:
        live.update("first")
        live.update("second")
    assert pipe.getvalue().splitlines()[:2] == ["first", "second"]
