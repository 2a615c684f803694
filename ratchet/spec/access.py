"""Who may do what over the API."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Role(StrEnum):
    """Each may do what those before it may."""

    VIEWER = "viewer"
    """Look at everything."""
    OPERATOR = "operator"
    """Launch and steer runs."""
    ADMIN = "admin"
    """Rebuild projections, give and revoke tokens, read the audit."""

    def includes(self, other: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


class TokenRequest(BaseModel):
    """A token to give to somebody."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={"examples": [{"name": "ada", "role": "operator"}]},
    )

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,63}$")
    """Who or what it is for: letters, digits, blanks and ._@-, 64 at most."""
    role: Role


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class TokenView(_View):
    """A token, without what proves it."""

    id: str = Field(examples=["3fa2c19b"])
    name: str = Field(examples=["ada"])
    role: Role
    created_at: datetime
    created_by: str = Field(examples=["loopback"])
    revoked_at: datetime | None = None


class NewToken(TokenView):
    """A token that was just made."""

    token: str = Field(examples=["ratchet_3fa2c19b_Zk0…"])
    """Told this once: only a digest of it is kept."""


class TokenList(_View):
    tokens: list[TokenView]


class AuditView(_View):
    """A call that may have changed something."""

    id: int = Field(examples=[17])
    at: datetime
    who: str = Field(examples=["3fa2c19b (ada)"])
    """Id and name of the token; `loopback`: nobody had to say."""
    role: Role
    origin: str = Field(examples=["10.0.0.7"])
    """The caller's address, as far as the API sees it."""
    method: str = Field(examples=["POST"])
    path: str = Field(examples=["/v1/runs/tiny-addition-3fa2c1/stop"])
    status: int | None = Field(default=None, examples=[202])
    """What was answered; null: the API ended before it could."""


class AuditList(_View):
    calls: list[AuditView]
    next_cursor: str | None = None
