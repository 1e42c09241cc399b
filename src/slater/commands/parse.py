"""Options of a command from a dataclass: fields are options, the text under a field is its help.

A field is an option `--its-name`, or an argument without a name where it is marked `Positional`. An option
of several values takes all that follow it (`--limits 10 20`), or one at a time where it is `Repeated`
(`--limit 10 --limit 20`). A field that is itself a dataclass adds its fields.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from cyclopts import App, CycloptsError, Parameter, Token, convert
from cyclopts.exceptions import UnusedCliTokensError

from slater.errors import InputError

Options = TypeVar("Options")
T = TypeVar("T")


#: marks of an argument without a name, and of an option that takes one value at a time and may be given again
POSITIONAL, REPEATED = "positional", "repeated"


@dataclass(frozen=True)
class Named:
    """Marks an option whose name is not that of its field."""

    name: str


Positional = Annotated[T, POSITIONAL]
Repeated = Annotated[tuple[str, ...], REPEATED]


def parse(options: type[Options], args: list[str], command: str) -> Options:
    """The options of `slater COMMAND` from its arguments; wrong ones raise one sentence."""
    return parse_given(options, args, command)[0]


def parse_given(options: type[Options], args: list[str], command: str) -> tuple[Options, frozenset[str]]:
    """The options, and the names of the fields that the arguments give; see `parse`.

    `--help` prints the docstring of `options`, examples included, and the help of every field, and exits.
    """
    # a bare call of the class would need its fields in the order of the signature
    signature = inspect.Signature(sorted(_parameters(options), key=lambda p: p.kind))

    def build(*values: Any, **named: Any) -> tuple[Options, frozenset[str]]:
        bound = signature.bind(*values, **named)
        given = frozenset(bound.arguments)
        bound.apply_defaults()
        return _build(options, bound.arguments), given

    build.__signature__ = signature  # type: ignore[attr-defined]
    text = inspect.cleandoc(options.__doc__ or "")
    if {"-h", "--help"} & set(itertools.takewhile(lambda word: word != "--", args)):
        print(text + "\n")
        text = ""
    app = App(
        name=f"slater {command}", help=text, help_format="plaintext", version_flags=[],
        result_action="return_value", default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,  # the commands say what Ctrl-C left
    )  # fmt: skip
    app["--help"].show = False
    app.default(build)
    try:
        found = app(args, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise InputError(f"{_sentence(error)}; see slater {command} --help.") from None
    if found is None:  # the help was printed
        raise SystemExit(0)
    return found


def at_least_one(options: Any, *names: str) -> None:
    """Refuse options of these names that are given and below 1."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}, but at least one is needed.")


def pick_name(args: list[str], command: str, choices: Mapping[str, str]) -> tuple[str, list[str]]:
    """The first argument, one of `choices` (name -> a line of help), and the rest; `--help` lists them."""
    if not args:
        raise InputError(f"slater {command} needs one of these names: {', '.join(choices)}.")
    if args[0] in ("-h", "--help"):
        width = max(map(len, choices))
        lines = "\n".join(f"  {name:<{width}}  {line}" for name, line in choices.items())
        print(f"Usage: slater {command} NAME [OPTIONS]      (slater {command} NAME --help explains each)\n")
        print(lines)
        raise SystemExit(0)
    if args[0] not in choices:
        raise InputError(f"there is no slater {command} {args[0]!r}; choose one of {', '.join(choices)}.")
    return args[0], args[1:]


def run_one_of(args: list[str], command: str, choices: Mapping[str, tuple[type, Any, str]]) -> int:
    """Do `slater COMMAND NAME ...`: choices has for each name its options, what does them, a line of help."""
    name, rest = pick_name(args, command, {name: line for name, (_, _, line) in choices.items()})
    options, work, _ = choices[name]
    return int(work(parse(options, rest, f"{command} {name}")))


def _sentence(error: CycloptsError) -> str:
    """What is wrong, without a full stop; the parser's own texts are one sentence each."""
    if isinstance(error, UnusedCliTokensError):
        tokens = error.unused_tokens or ()
        left = ", ".join(map(repr, tokens))
        again = " (an option that takes one value is given again for each: --limit a=1 --limit b=2)"
        return f"there is no place for {left}{again if any('=' in token for token in tokens) else ''}"
    return " ".join(str(error).split()).rstrip(".")


def _parameters(options: type) -> Iterator[inspect.Parameter]:
    """A parameter for every field of the options, and of a dataclass in them."""
    hints, texts = get_type_hints(options, include_extras=True), field_texts(options)
    for field in dataclasses.fields(options):
        given: Any = hints[field.name]
        hint, *marks = get_args(given) if get_origin(given) is Annotated else (given,)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _parameters(hint)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        word = next((mark.name for mark in marks if isinstance(mark, Named)), field.name).replace("_", "-")
        many = any(get_origin(part) is tuple for part in _parts(hint))
        positional = POSITIONAL in marks
        about = Parameter(
            name=None if positional else f"--{word}",
            help=texts.get(field.name, ""),
            consume_multiple=many and not positional and REPEATED not in marks,
            # a default that is no value, or is said in the text, is not repeated
            show_default=default not in (None, (), False, inspect.Parameter.empty),
            negative=f"--no-{word}" if hint == bool | None else (),
        )
        if int in _parts(hint) or (many and int in get_args(hint)):
            about = Parameter.combine(about, Parameter(converter=_whole))
        kind = inspect.Parameter.POSITIONAL_ONLY if positional else inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(field.name, kind, annotation=Annotated[hint, about], default=default)


def _whole(hint: Any, tokens: Sequence[Token]) -> Any:
    """Whole numbers; the parser would round 2.5 without a word."""
    for token in tokens:
        try:
            rest = float(token.value) % 1
        except ValueError:  # no decimal number: the parser says what it is
            continue
        if rest:
            raise ValueError(f"{token.value} is no whole number")
    return convert(hint, tokens)


def _parts(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _build(options: type[Options], values: Mapping[str, Any]) -> Options:
    hints = get_type_hints(options)
    arguments = {
        field.name: _build(hints[field.name], values)
        if dataclasses.is_dataclass(hints[field.name])
        else values[field.name]
        for field in dataclasses.fields(options)  # type: ignore[arg-type]  # a dataclass type
    }
    return options(**arguments)


def field_texts(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass and its bases, which Python itself does not keep."""
    texts: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if base is not object]):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # made at run time: no source
            continue
        assert isinstance(body, ast.ClassDef)
        for field, text in itertools.pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                value = text.value
                if isinstance(field.target, ast.Name) and isinstance(value, ast.Constant):
                    texts[field.target.id] = " ".join(str(value.value).split())
    return texts
