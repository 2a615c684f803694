"""The run spec: everything a person decides about a run, in the field's names.

Every model is frozen and forbids unknown keys, so that a misspelt key fails at load (law 10) and never
silently keeps a default. The docstring under a field is its reference documentation.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from ratchet.spec.asynchronous import AsynchronousSpec
from ratchet.spec.placement import PlacementSpec
from ratchet.spec.reporting import MetricsSpec, NotifySpec

LARGEST = 2**63 - 1
"""Of whole numbers: what every database and language can hold."""

Positive = Annotated[int, Field(gt=0, le=LARGEST)]
NonNegative = Annotated[int, Field(ge=0, le=LARGEST)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Precision = Literal["auto", "float32", "bfloat16"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class OptimizerSpec(_Section):
    """AdamW with linear warm-up and global-norm clipping."""

    lr: Annotated[float, Field(gt=0.0)] = 5e-6
    """Peak learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """AdamW's moment decay rates."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """AdamW's epsilon."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Decoupled weight decay."""
    warmup_steps: NonNegative = 0
    """Steps over which the learning rate rises linearly from lr / warmup_steps to lr."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """Gradients are scaled down to this global norm."""


class PolicySpec(_Section):
    """The model that is trained, and the trainer that does it."""

    model: str
    """`tiny`, `smollm2-135m`, a folder in the Hugging Face layout, or a Hugging Face model name."""
    backend: str = "torch"
    """Trainer backend: `torch`, or `module:Class`."""
    precision: Precision = "float32"
    """Autocast precision of forward and backward; master weights and optimizer are float32 always. `auto`:
    bfloat16 where the hardware computes in it (CUDA from Ampere on, processors with AVX512_BF16 or AMX), else
    float32. The trainer logs which one it is."""
    train_micro_batch_size: Positive = 16
    """Samples per forward and backward. Changes speed and memory, not the result (law 1)."""
    train_global_batch_size: Positive | None = None
    """Samples per optimizer step. Leave it out: it is num_prompts_per_step x num_generations_per_prompt."""
    max_total_sequence_length: Positive = 1024
    """Longest prompt plus response, in tokens."""
    optimizer: OptimizerSpec = OptimizerSpec()


class GenerationSpec(_Section):
    """How rollouts are sampled."""

    backend: str = "hf"
    """Generator backend: `hf`, or `module:Class`."""
    max_new_tokens: Positive
    """Longest response, in tokens."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Sampling temperature; evaluation is greedy whatever this says."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling; 1.0 is off."""
    top_k: NonNegative = 0
    """Sample among the k likeliest tokens; 0 is off."""
    stop_strings: tuple[str, ...] = ()
    """A response ends once its text holds one of these (the string stays part of the response)."""
    precision: Precision = "float32"
    """Precision of the generators' weights and activations. `auto`: as in policy.precision, for the
    generators' hardware. Generators log which one it is."""
    deterministic: bool = False
    """Generate each prompt group by itself, with its own padding, so that its tokens do not depend on its
    neighbours: runs end bit-identical (on one machine). Off: whole batches, faster."""


class GrpoSpec(_Section):
    """Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300)."""

    num_prompts_per_step: Positive
    """Prompt groups per step."""
    num_generations_per_prompt: Annotated[int, Field(ge=2)]
    """Samples per prompt group; at least 2, since the baseline is the group's own."""
    max_num_steps: Positive
    """Optimizer steps of the run."""
    advantage_baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    """The group's mean reward, or the mean of the *other* samples (RLOO, Ahmadian et al. 2024)."""
    normalize_advantages: bool = True
    """Divide advantages by the group's reward standard deviation."""


class LossSpec(_Section):
    """Clipped policy gradient at token level."""

    ratio_clip_min: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2
    """The ratio is clipped from below at 1 - ratio_clip_min."""
    ratio_clip_max: Annotated[float, Field(ge=0.0)] = 0.2
    """The ratio is clipped from above at 1 + ratio_clip_max (0.28: clip-higher, DAPO)."""
    reference_policy_kl_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of the k3 KL estimate to the base model (Schulman 2020); 0 loads no reference at all."""
    importance_sampling_correction: bool = True
    """Weigh tokens by training / generation probability, since engines differ a little."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Whether that weight is of each token, or one for a whole response: the product of its tokens'."""
    importance_sampling_rule: Literal["truncate", "icepop", "sequence_mask"] = "truncate"
    """What is done about weights outside importance_weight_min to importance_weight_max. `truncate` (TIS)
    bounds them; `icepop` drops those tokens; `sequence_mask` drops whole responses whose geometric mean of
    the tokens' weights is outside, and leaves the weights of the others as they are."""
    importance_weight_min: Annotated[float, Field(ge=0.0)] = 0.0
    importance_weight_max: Annotated[float, Field(gt=0.0)] = 2.0
    cross_incarnation_kl_max: Annotated[float, Field(gt=0.0)] = 0.1
    """After a recovery whose re-trained weights differ in bits from the lost ones, journaled groups of the
    lost ones are trained on with importance correction; a group further away than this (k3 estimate of the
    KL, nats a token) is discarded and counted in `discarded_groups`."""


class EnvironmentSpec(_Section):
    """Where prompts come from and what scores the answers."""

    name: str
    """`arithmetic`, `reasoning-gym:<task>` (any task of that package), or `module:Class`."""
    options: dict[str, JsonValue] = {}
    """Options of that environment; a wrong one is refused by name."""
    timeout_s: Annotated[float, Field(gt=0.0)] = 600.0
    """Seconds that the score of a response may take before it is asked for again, where it can be waited for:
    `score` is an `async def`, or rollouts stream. A rollout or an evaluation fails when its environment was
    away five times in a row."""
    max_dropped: NonNegative = 0
    """Prompts that may be given up over the whole run, when they cannot be worked on (no answer can be
    scored, no room for a response). They are counted, and never zero rewards; one more ends the run."""


class EvaluationSpec(_Section):
    """Greedy accuracy on held-out problems."""

    num_problems: NonNegative = 128
    """Held-out problems, the first of a fixed list; 0 turns evaluation off."""
    every: NonNegative = 0
    """Evaluate every so many steps; 0: only at start and end."""
    at_start: bool = True
    """Evaluate the untrained policy."""
    at_end: bool = True
    """Evaluate the final policy."""


class CheckpointSpec(_Section):
    """When and what is saved. The final policy is always saved."""

    every: NonNegative = 0
    """Checkpoint every so many steps; 0: only at the end."""
    hf_export: Literal["every", "final", "never"] = "every"
    """Which checkpoints also hold `hf/`, a folder that `from_pretrained` loads: every one, the one that ends
    the run, or none."""
    keep_last: Positive = 3
    """Keep the newest so many checkpoints; older ones are deleted once a newer one is committed."""
    keep_every: NonNegative = 0
    """Keep also every checkpoint whose step is a multiple of this; 0: none for that reason."""
    keep_best: Literal["none", "accuracy", "reward_mean"] = "none"
    """Keep also the checkpoint with the best held-out value of this metric, among those evaluated."""


class DataPlaneSpec(_Section):
    """How finished prompt groups get from the generators to the trainer."""

    backend: Literal["simple", "memory", "mooncake_cpu", "ray"] = "simple"
    """`simple`: TransferQueue, in processes of its own; bytes go straight there and from there. `memory`: one
    process keeps it all; for small runs and tests. `mooncake_cpu`, `ray`: TransferQueue over Mooncake's
    store or Ray Direct Transport, which are extras."""
    capacity_gib: Annotated[float, Field(ge=0.0)] = 8.0
    """Room for groups that are not trained yet; 0 is unbounded. Who puts more waits until some are
    trained."""
    storage_units: Positive = 1
    """Processes that keep the bytes (`simple`), spread over the nodes."""


class RefitSpec(_Section):
    """How weights get from the trainer to the generators."""

    transport: Literal["ipc", "http", "collective", "store"] = "ipc"
    """`ipc`: shared memory of one host. `http`: each generator asks the trainer's host for the bytes.
    `collective`: a broadcast over gloo. `store`: by way of the artifact store, where the newest versions
    stay."""
    codec: Literal["full", "delta"] = "full"
    """`full`: all bytes of every version. `delta`: what has changed since the version before, for generators
    that have that one; the trainer's host keeps two versions."""
    full_every: Positive = 16
    """With `store` and `delta`: every so many versions are kept whole, and patches between them."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: object) -> object:
        """Specs of runs that were launched before say `mover`."""
        if isinstance(given, dict) and "mover" in given and "transport" not in given:
            section = cast("dict[str, object]", given)
            return {"transport" if key == "mover" else key: value for key, value in section.items()}
        return cast("object", given)


class RuntimeSpec(_Section):
    """What the run may use of the machines, and the workflow's own bounds."""

    threads: NonNegative = 0
    """Threads of trainer and generator (their phases alternate); 0: all cores. 1 is needed, together with
    generation.deterministic, for bit-identical runs."""
    continue_as_new_every_steps: Positive = 64
    """The workflow continues as new after so many steps (or 2,000 events, whichever is first)."""
    stalled_after_s: Annotated[float, Field(ge=10)] = 900.0
    """A run that finished neither a prompt group nor a step for so many seconds while work remains is called
    stalled: its state, its newest incident and `ratchet run show` say who is silent."""
    priority: Annotated[int, Field(ge=-10, le=10)] = 0
    """Which run gets a session first, where `ratchet up --max-sessions` leaves too few. One more counts like
    having waited an hour longer, so that nobody waits for ever; equal ones are served as they came."""


class RunSpec(_Section):
    """One training job."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    """The recipe's name: lower-case letters, digits and dashes."""
    mode: Literal["train", "generation_benchmark"] = "train"
    """`generation_benchmark`: the same rollouts, steps and receipts, but nothing is trained and no weights
    move, so that generation is measured alone."""
    seed: NonNegative = 0
    """Chooses problems, sampling and initialisation. Same seed, same run."""
    policy: PolicySpec
    generation: GenerationSpec
    grpo: GrpoSpec
    loss: LossSpec = LossSpec()
    asynchronous: AsynchronousSpec | None = None
    environment: EnvironmentSpec
    evaluation: EvaluationSpec = EvaluationSpec()
    checkpointing: CheckpointSpec = CheckpointSpec()
    placement: PlacementSpec = PlacementSpec()
    data_plane: DataPlaneSpec = DataPlaneSpec()
    refit: RefitSpec = RefitSpec()
    runtime: RuntimeSpec = RuntimeSpec()
    metrics: MetricsSpec = MetricsSpec()
    notify: NotifySpec = NotifySpec()

    @property
    def streams(self) -> bool:
        """Whether steps take their groups in as they are finished, rather than a batch at a time."""
        return self.asynchronous is not None and not self.asynchronous.exact

    @property
    def samples_per_step(self) -> int:
        return self.grpo.num_prompts_per_step * self.grpo.num_generations_per_prompt

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if contradictions := "\n".join(self._contradictions()):
            raise ValueError(contradictions)
        return self

    def _contradictions_of_loss(self) -> Iterator[str]:
        loss = self.loss
        if loss.importance_weight_min > loss.importance_weight_max:
            yield (
                f"loss.importance_weight_min is {loss.importance_weight_min:g}, more than "
                f"loss.importance_weight_max ({loss.importance_weight_max:g}): lower it"
            )
        if loss.importance_sampling_rule == "sequence_mask" and loss.importance_sampling_level == "sequence":
            yield (
                "loss.importance_sampling_rule is sequence_mask, which weighs the tokens of responses that "
                "it keeps: set loss.importance_sampling_level to token"
            )

    def _contradictions(self) -> Iterator[str]:
        """One line for each pair of keys that cannot both hold, with the fix."""
        yield from self._contradictions_of_loss()
        prompts, generations = self.grpo.num_prompts_per_step, self.grpo.num_generations_per_prompt
        if self.asynchronous:
            corrected = self.loss.importance_sampling_correction
            yield from self.asynchronous.contradictions(prompts, corrected=corrected)
        yield from self.placement.contradictions(self.asynchronous)
        if self.refit.transport == "ipc" and self.refit.codec == "delta":
            yield (
                "refit.codec is delta, but with refit.transport ipc no bytes travel, whatever has changed: "
                "set refit.codec to full, or refit.transport to http, collective or store"
            )
        samples, batch = self.samples_per_step, self.policy.train_global_batch_size
        if batch is not None and batch != samples:
            yield (
                f"policy.train_global_batch_size is {batch}, but grpo.num_prompts_per_step x "
                f"grpo.num_generations_per_prompt is {prompts} x {generations} = {samples}: "
                f"set it to {samples}, or leave it out"
            )
        if self.policy.train_micro_batch_size > samples:
            yield (
                f"policy.train_micro_batch_size is {self.policy.train_micro_batch_size}, more than the "
                f"{samples} samples of a step: set it to {samples} or less"
            )
        longest = self.policy.max_total_sequence_length
        if self.generation.max_new_tokens >= longest:
            yield (
                f"generation.max_new_tokens is {self.generation.max_new_tokens}, which leaves no room for a "
                f"prompt in policy.max_total_sequence_length ({longest}): lower the one, or raise the other"
            )
