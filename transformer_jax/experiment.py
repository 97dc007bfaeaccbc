"""Experiment files: Python that makes a configuration."""

import importlib.util
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path

from transformer_jax.config import Config
from transformer_jax.errors import UserError


def load_experiment(name: str) -> Config:
    """Runs the experiment file of `FILE` or `FILE:VARIANT` and returns what its function gives.

    That is `get_config()`, or `get_config(variant)` with the text after the colon, where there is
    one. Raises UserError where the file is missing, fails, or has no such function.
    """
    path, variant = _split_variant(name)
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{path}: no such experiment file")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        get_config = getattr(module, "get_config", None)
        if not callable(get_config):
            raise UserError("an experiment file must define get_config() -> Config")
        _check_call(get_config, variant)
        config = get_config(*variant)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise UserError(f"{error.filename or file}{line}: {error.msg}") from None
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__
        raise UserError(f"{line.filename}, line {line.lineno}: {kind}: {error}") from None
    if not isinstance(config, Config):
        raise UserError(f"{file}: get_config() returned {type(config).__name__}, not Config")
    return config


def _check_call(get_config: Callable, variant: list[str]) -> None:
    try:
        inspect.signature(get_config).bind(*variant)
    except TypeError:
        call = f"get_config({', '.join(map(repr, variant))})"
        raise UserError(
            f"{call} does not fit its parameters: FILE calls it with none, FILE:VARIANT with one"
        ) from None


def _split_variant(name: str) -> tuple[str, list[str]]:
    """The path, and the variant where one is given; a file whose name has a colon is a file."""
    path, colon, variant = name.rpartition(":")
    if not colon or Path(name).expanduser().is_file():
        return name, []
    return path, [variant]
