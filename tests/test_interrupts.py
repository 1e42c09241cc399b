"""Ctrl-C is heard wherever it falls."""

import subprocess
import sys

SCRIPT = """
import gc, os, signal, sys, time
from slater import cli

class Falls:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # the handler runs here, where Python swallows what it raises
            pass

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs this in its background

def run(args):
    gc.callbacks.append(in_the_collector)
    {act}
    time.sleep(30)
    return 0

def in_the_collector(phase, info):
    gc.callbacks.clear()
    if {collector}:
        Falls.__del__(None)

sys.modules["slater.commands.demo"] = sys.modules["__main__"]
sys.exit(cli.main(["demo"]))
"""


def stopped(act: str, collector: bool) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(act=act, collector=collector)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=25, check=False
    )


def test_an_interrupt_inside_a_destructor_stops_the_command() -> None:
    done = stopped("Falls()", collector=False)
    assert (done.returncode, done.stderr) == (130, "slater: stopped.\n")


def test_an_interrupt_inside_a_callback_of_the_collector_stops_the_command() -> None:
    done = stopped("gc.collect()", collector=True)
    assert (done.returncode, done.stderr) == (130, "slater: stopped.\n")
