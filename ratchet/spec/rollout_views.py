"""What the API answers about rollouts: the journal's records, for people."""

from pydantic import BaseModel, ConfigDict, Field

_VERSION = "1.12.9f86d081"


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class SampleView(_View):
    """One response of the policy."""

    text: str = Field(examples=["7\n"])
    num_tokens: int = Field(examples=[3])
    reward: float | None = Field(examples=[1.0])
    rewards: dict[str, float | None] = Field(examples=[{"exact": 1.0}])
    """The reward by component; they sum to `reward`."""
    correct: bool
    finish_reason: str = Field(examples=["stop"])
    """`stop`: end of sequence or a stop string; `length`: no more room."""
    seed: int = Field(examples=[81985529216486895])
    """What its sampling was seeded with."""
    logprob_mean: float | None = Field(examples=[-0.31])
    """Mean log-probability of its tokens when they were sampled, in nats."""


class RolloutView(_View):
    """One prompt and its responses: a prompt group."""

    key: int = Field(examples=[196])
    """The position of its prompt in the run's data."""
    problem_id: str = Field(examples=["add-12-31"])
    prompt: str | None = Field(default=None, examples=["12+31="])
    """As the environment writes it; null if the environment is not installed where the API runs."""
    incarnation: int = Field(examples=[1])
    """The one that generated it."""
    version_start: str = Field(examples=[_VERSION])
    """Weights that sampled its first token."""
    version_end: str = Field(examples=[_VERSION])
    """Weights that sampled its last token: another one, if a refit came between."""
    trained_at: int | None = Field(default=None, examples=[13])
    """The step on the path to the head that was trained on it; null: none was yet."""
    logprob_error: float | None = Field(default=None, examples=[1e-6])
    """Of that step: how far the trainer's log-probabilities are from the generator's."""
    samples: list[SampleView]


class DroppedView(_View):
    """A prompt that was given up: it is trained by nobody, and counts as no reward."""

    key: int = Field(examples=[197])
    incarnation: int = Field(examples=[1])
    cause: str = Field(examples=["no room for a response"])


class RolloutPage(_View):
    run: str
    rollouts: list[RolloutView]
    """By key."""
    dropped: list[DroppedView] = []
    """Given up among the keys of this page."""
    next_cursor: str | None = None
    """Pass it as `cursor` for the next page; null on the last one."""


class TokensView(_View):
    """What was sampled, token by token; the lists of a sample have the same length."""

    tokens: list[int] = Field(examples=[[55, 10]])
    logprobs: list[float | None] = Field(examples=[[-0.11, -0.02]])
    """In nats, under the distribution each was sampled from."""
    mask: list[int] = Field(examples=[[1, 1]])
    """1 where the token is the policy's, and is trained on."""


class RolloutRecord(RolloutView):
    """A prompt group with its raw tokens."""

    prompt_tokens: list[int] = Field(examples=[[49, 50, 43, 51, 49, 61]])
    raw: list[TokensView]
    """One per sample, in their order."""
