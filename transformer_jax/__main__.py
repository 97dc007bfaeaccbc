"""The command line: `python -m transformer_jax COMMAND ...`, or `transformer-jax COMMAND ...`."""

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from transformer_jax.compilation_cache import keep_compiled_programs
from transformer_jax.errors import UserError
from transformer_jax.host_memory import keep_freed_memory

# A command is imported when it runs, and imports what it needs then: `--help` should not wait for
# JAX.
COMMANDS = (
    *("train", "translate", "score", "evaluate", "average", "report"),
    *("inspect", "compile"),
)

USAGE = """usage: transformer-jax COMMAND ...

  train EXPERIMENT [--section.field VALUE ...]   train, or go on with, an experiment file
  translate RUN [RUN ...] [options]              translate lines of text; several runs together
  score RUN [RUN ...] [options]                  log-probability of given translations
  evaluate RUN [RUN ...] [options]               translate a test set, score it, compare runs
  average RUN@average:N NEW_RUN                  the mean of checkpoints, as a run of its own
  report RUN [RUN ...] [--output FILE]           one page: curves, scores, translations
  inspect EXPERIMENT [--json] [--html FILE]      what is in the text, before training on it
  compile EXPERIMENT --topology v5e:4x4 [...]    memory and estimated time on devices not there

COMMAND --help lists the options of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status: 0, 2 for a user's mistake, 128 + a signal.

    It is 1 for text on which training would be meaningless.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # in a notebook they are others
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name, rest = arguments[0], arguments[1:]
    try:
        if name not in COMMANDS:
            raise UserError(f"no command {name!r}; the commands are {', '.join(COMMANDS)}")
        status = importlib.import_module(f"transformer_jax.commands.{name}").run(rest)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"transformer-jax: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:
        # What read standard output has ended, as `head` does; without this Python complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"transformer-jax: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return 2


def program() -> NoReturn:
    """The process of a command line, which SIGINT ends with status 130 whenever it comes."""
    signal.signal(signal.SIGINT, _interrupt)
    keep_freed_memory()
    if sys.argv[1:2] != ["compile"]:  # which tells how long it took
        keep_compiled_programs()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        _leave()


def _interrupt(_number: int, _frame: object) -> None:
    if "jax" not in sys.modules:
        raise KeyboardInterrupt  # what has begun to be written is taken back
    # JAX loses an exception of its callback of the garbage collector, its threads crash when they
    # find Python gone, and its modules are not to be cut short while they are imported.
    _leave()


def _leave() -> NoReturn:
    message = "transformer-jax: interrupted\n"
    if sys.stderr.isatty():
        message = f"\n{message}"  # below a progress bar
    os.write(sys.stderr.fileno(), message.encode())
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    program()
