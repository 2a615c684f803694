"""Secrets by reference: a spec says where one is, never what it is, so that no history and no store holds
it."""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Self, cast

from pydantic import BaseModel, ConfigDict, model_validator

_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
_LITERAL = (
    "a value, and specs only name secrets: write {env: NAME} or {file: /path}, and put the value there, "
    "on the machine of the stack"
)


class SecretRef(BaseModel):
    """`{env: NAME}` or `{file: /path}`, on the machine of the stack."""

    # What was wrongly written here may be a secret: no message repeats it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )

    env: str | None = None
    """An environment variable, in capital letters."""
    file: str | None = None
    """A file whose first line is the secret."""

    @model_validator(mode="before")
    @classmethod
    def _only_named(cls, value: object) -> object:
        if isinstance(value, SecretRef):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(_LITERAL)
        said = cast(Mapping[str, object], value)
        env, file = said.get("env"), said.get("file")
        if env is not None and not (isinstance(env, str) and _NAME.fullmatch(env)):
            raise ValueError(f"`env` holds {_LITERAL} (names are capital letters, digits and _)")
        if file is not None and not (isinstance(file, str) and _is_path(file)):
            raise ValueError(f"`file` holds {_LITERAL} (paths begin with / or ~)")
        return cast(object, said)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("needs one of env and file, and not both")
        return self

    def __str__(self) -> str:
        return f"environment variable {self.env}" if self.env else f"file {self.file}"


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~/")) and "\0" not in text and PurePath(text).name != ""
