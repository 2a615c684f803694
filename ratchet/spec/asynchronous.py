"""How far rollouts may run ahead of the trainer."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=2**31)]


class AsynchronousSpec(BaseModel):
    """Rollouts go on while the trainer works. Without this section a step begins when the last one ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    sampler: str = "in_order"
    """Which finished groups a step trains on. `in_order`: those of the next prompts; `weight_fifo`: those of
    the oldest weights; `ready_first`: those that are finished first; `windowed`: any within the window;
    `module:Class`: what a class of your own says."""
    max_staleness: Count = 1
    """Optimizer steps by which the weights that sampled a group may be older than those that are trained on
    it. 0 with `in_order`: the synchronous loop, bit for bit."""
    refit: Literal["drain", "keep", "abort"] = "drain"
    """What becomes of groups that are being sampled when new weights come. `drain`: the weights wait for
    them; `keep`: they go on, under the new weights from their next call of the model on; `abort`: calls of
    the model are cut short, and made again under the new weights."""
    max_buffered_groups: Count = 0
    """Groups that may be begun and not trained: 0 is what the window holds, num_prompts_per_step x
    (max_staleness + 1). More is over-sampling: what becomes too old meanwhile is thrown away."""
    max_inflight_groups: Count = 0
    """Groups that may be sampled at once; 0: all that may be buffered."""
    min_groups_to_train: Annotated[int, Field(ge=1)] = 1
    """The trainer begins with so many finished groups while the rest of its batch is still sampled."""
    freshest_first: bool = True
    """Whether `windowed` prefers the newest weights, or the oldest."""

    @property
    def exact(self) -> bool:
        """Whether what a step is trained on does not depend on how long anything took."""
        return self.sampler == "in_order" and self.refit == "drain"

    @property
    def keeps_all(self) -> bool:
        """Whether every group that is begun is trained on, however long it takes."""
        return self.sampler in ("in_order", "weight_fifo")

    def buffered(self, prompts: int) -> int:
        """Groups that may be begun and not trained, with so many prompts a step."""
        return self.max_buffered_groups or prompts * (self.max_staleness + 1)

    def inflight(self, prompts: int) -> int:
        return self.max_inflight_groups or self.buffered(prompts)

    def contradictions(self, prompts: int, *, corrected: bool) -> Iterator[str]:
        """One line for each pair of keys that cannot both hold, with the fix. `corrected`: whether the loss
        weighs tokens by importance."""
        if self.max_staleness and not corrected:
            yield (
                "loss.importance_sampling_correction is off, but asynchronous.max_staleness has other "
                "weights sample than are trained: turn it on"
            )
        if self.exact and self.max_staleness > 1:
            yield (
                f"asynchronous.max_staleness is {self.max_staleness}, but with asynchronous.refit: drain "
                "no batch of in_order can be more than one step ahead: set it to 1, or "
                "asynchronous.refit to keep"
            )
        if self.max_staleness == 0 and not self.exact:
            yield (
                "asynchronous.max_staleness is 0, which leaves nothing to do ahead: set it to 1 or more, or "
                "asynchronous.sampler to in_order and asynchronous.refit to drain"
            )
        window = prompts * (self.max_staleness + 1)
        if 0 < self.max_buffered_groups < window:
            yield (
                f"asynchronous.max_buffered_groups is {self.max_buffered_groups}, fewer than the window of "
                f"grpo.num_prompts_per_step x (asynchronous.max_staleness + 1) = {window} groups, and a step "
                f"would wait for prompts that may not begin: set it to {window} or more, or leave it out"
            )
        if self.keeps_all and self.max_buffered_groups > window:
            yield (
                f"asynchronous.max_buffered_groups is {self.max_buffered_groups}, but "
                f"asynchronous.sampler {self.sampler} throws nothing away, and what is begun beyond {window} "
                "groups would be too old: leave it out, or choose ready_first or windowed"
            )
        if self.min_groups_to_train > prompts:
            yield (
                f"asynchronous.min_groups_to_train is {self.min_groups_to_train}, more than the "
                f"{prompts} groups of a step (grpo.num_prompts_per_step): lower it"
            )
