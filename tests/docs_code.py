"""The code in the docs: blocks of a page, and commands in them, read by the parsers that users meet."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import slater.commands
from slater.cli import COMMANDS, main

ROOT = Path(__file__).parent.parent
#: the pages whose code is checked; the results' own tables are written by commands,
#: and the files of the lab are of their day
PAGES = sorted(
    page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if not {"results", "lab"} & set(page.parent.parts)
)  # fmt: skip
LANGUAGES = ("python", "bash", "text", "toml", "json", "doctest")
#: how a line begins that is a command
PROGRAMS = ("slater", "pip", "make", "python", "pytest", "git", "docker", "curl", "mkdocs", "tensorboard")


@dataclass(frozen=True)
class Block:
    """One block of code. title: what the page shows above it; a block `not run...` says why."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in their order; those that name no language are told by their first line."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        if token.type not in ("fence", "code_block"):
            continue
        words = token.info.split(maxsplit=1)
        title = re.search(r'title="([^"]*)"', token.info)
        language = words[0] if words else _told(token.content)
        line = (token.map or [0])[0] + 1
        found.append(Block(page, line, language, title.group(1) if title else "", token.content))
    return found


def _told(text: str) -> str:
    """bash where a line is a command, a doctest where a line is a prompt, else text."""
    if re.search(r"^>>> ", text, re.M):
        return "doctest"
    if re.search(rf"^(\$ |({'|'.join(PROGRAMS)}) |[A-Z_]+=)", text, re.M):
        return "bash"
    return "text"


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block, as words; `X="slater ..."` and `$X` are put together."""
    prompted = re.search(r"^\$ ", block.text, re.M) is not None
    variables: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        if prompted and not line.startswith("$ "):
            continue  # what the command printed
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words and re.fullmatch(r"[A-Za-z_]+=.*", words[0], re.S):
            name, value = words.pop(0).split("=", 1)
            variables[name] = value
        if words and words[0].startswith("$") and words[0][1:] in variables:
            words = [*shlex.split(variables[words[0][1:]]), *words[1:]]
        while words:  # a && b
            end = words.index("&&") if "&&" in words else len(words)
            yield words[:end]
            words = words[end + 1 :]


class Parsed(BaseException):
    """Raised where a command has read its options, before it does anything."""


def refuse_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every command of `slater` stop once its options are read."""
    from slater.commands import parse as parsing

    read = parsing.parse_given

    def stop(options, args, command):
        read(options, args, command)
        raise Parsed

    # all of them first: one that is imported after `parse` was changed would keep the change for good
    names = [module.name for module in pkgutil.iter_modules(slater.commands.__path__)]
    for loaded in [importlib.import_module(f"slater.commands.{name}") for name in names]:
        for name in ("parse", "parse_given"):
            if hasattr(loaded, name):
                monkeypatch.setattr(loaded, name, stop)


def problem_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is wrong with a command; "" if nothing is. `refuse_to_run` must have been called."""
    program, rest = words[0], words[1:]
    if program == "slater":
        return _problem_of_slater(rest, capsys)
    if program == "make":
        targets = [word for word in rest if "=" not in word]
        known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        return "" if set(targets) <= set(known) else f"no such target: {targets}"
    if program == "pip":
        extras = set(re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(), re.M))
        for asked in re.findall(r"slater-rl\[([^\]]*)\]", " ".join(rest)):
            if unknown := set(asked.split(",")) - extras:
                return f"no such extra: {unknown}"
        return ""
    if program in ("cat", "head", "ls"):
        return ""
    if program in ("python", "pytest"):
        return _problem_of_python(rest)
    return f"nobody checks {program}"


def _problem_of_slater(rest: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    if rest[0] not in COMMANDS:
        return f"no such command: {rest[0]}"
    if rest[-1] == "--settings":
        return _problem_of_training(rest[:2])
    try:
        code = main(rest)
    except (Parsed, SystemExit):
        return _problem_of_training(rest) if rest[0] == "train" else ""
    return f"exit code {code}: {capsys.readouterr().err}"


def _problem_of_training(rest: list[str]) -> str:
    """Whether `slater train` names an algorithm, preset and settings that there are."""
    from slater.deep.algorithms.registry import find, make_config
    from slater.errors import InputError

    if rest[1] in ("--resume", "penalised-clone"):  # the second is the example package's
        return ""
    given = dict(
        word.split("=", 1) for flag, word in itertools.pairwise(rest) if flag in ("--set", "--sweep")
    )
    given = {name: v.split(",")[0] for name, v in given.items() if name not in ("limit", "seed")}
    preset = rest[rest.index("--preset") + 1] if "--preset" in rest else None
    try:
        make_config(find(rest[1], preset), {n: v for n, v in given.items() if not v.isupper()}, preset)
    except InputError as error:
        return str(error)
    return ""


def _problem_of_python(rest: list[str]) -> str:
    """Whether the files and modules that are run are there."""
    if rest[0] == "-c":
        compile(rest[1], "-c", "exec")
        return ""
    if rest[0] == "-m":
        place = ROOT / rest[1].replace(".", "/")
        there = place.with_suffix(".py").exists() or (place / "__main__.py").exists() or rest[1] == "venv"
        return "" if there else f"no module {rest[1]}"
    for word in rest:
        if re.match(r"[\w/.-]+/[\w./-]*", word) and word.split("/")[0] in ("tests", "scripts", "examples"):
            return "" if (ROOT / word.split("::")[0]).exists() else f"no file {word}"
    return f"no file of the repository in {rest}"
