"""How a section of the configuration checks its values."""

import sys
import typing
from typing import Literal

from transformer_jax.errors import UserError

_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple[str, ...]: "a list of texts",
}


def check(section: object, condition: bool, name: str, requirement: str) -> None:
    if not condition:
        where = type(section).__name__.removesuffix("Config").lower()
        path = f"{where}.{name}" if where else name
        raise UserError(f"{path} is {getattr(section, name)!r}: it must be {requirement}")


def check_least(section: object, least: int, *names: str) -> None:
    for name in names:
        check(section, getattr(section, name) >= least, name, f"{least} or more")


def check_types(section: object) -> None:
    for name, hint in typing.get_type_hints(type(section)).items():
        value = getattr(section, name)
        if typing.get_origin(hint) is Literal:
            choices = typing.get_args(hint)
            check(section, value in choices, name, " or ".join(map(repr, choices)))
        elif hint == tuple[str, ...]:
            valid = isinstance(value, tuple) and all(isinstance(text, str) for text in value)
            check(section, valid, name, _KINDS[hint])
        else:
            accepted = (int, float) if hint is float else hint
            valid = isinstance(value, accepted) and isinstance(value, bool) == (hint is bool)
            if hint is float:
                valid = valid and abs(value) <= sys.float_info.max
            check(section, valid, name, _KINDS.get(hint, f"a {hint.__name__}"))
