"""Who asks, and whether they may."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.problems import Forbidden
from ratchet.spec.access import Role


@dataclass(frozen=True, slots=True)
class Caller:
    who: str
    """Id and name of the token, or `loopback`."""
    role: Role


NOBODY_IN_PARTICULAR = Caller("loopback", Role.ADMIN)
"""Whoever asks on loopback without a token: the person whose machine it is."""

_bearer = HTTPBearer(
    auto_error=False,
    description="A token from `ratchet token create`. On loopback it may be left out, unless the API "
    "listens wider.",
)


def _caller(
    request: Request, _documented: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> Caller:
    return request.state.caller  # the guard has put it there


CallerDep = Annotated[Caller, Depends(_caller)]


class _Needs:
    def __init__(self, role: Role) -> None:
        self._role = role

    async def __call__(self, caller: CallerDep) -> None:
        if not caller.role.includes(self._role):
            raise Forbidden(
                f"{caller.who} is {caller.role}, and this needs {self._role}: ask an admin for such a token"
            )


viewer = Depends(_Needs(Role.VIEWER))
operator = Depends(_Needs(Role.OPERATOR))
admin = Depends(_Needs(Role.ADMIN))
