"""One readable line for every activity: the Temporal UI reads as prose."""

from ratchet.spec.operations import (
    AnyArgs,
    CommitArgs,
    EvaluateArgs,
    RefitArgs,
    RestoreArgs,
    RolloutArgs,
    SnapshotArgs,
    TrainArgs,
)

LONGEST = 200
"""Bytes; our own rule, so that a line stays a line."""


def summary(args: AnyArgs) -> str:
    """What the operation does, in words."""
    step = f"step {args.op.step}: "
    match args:
        case RestoreArgs(checkpoint=None):
            text = "load the base model"
        case RestoreArgs():
            text = f"restore from {args.checkpoint}"
        case RolloutArgs():
            text = (
                f"roll out prompts {args.cursor_start} to {args.cursor_end - 1} with weights {args.version}"
            )
        case TrainArgs():
            text = (
                f"train on prompts {args.cursor_start} to {args.cursor_end - 1} from weights {args.version}"
            )
        case RefitArgs():
            text = f"move weights {args.version} to the generators"
        case SnapshotArgs():
            text = f"copy weights {args.version} for a checkpoint"
        case CommitArgs():
            text = f"write the checkpoint of weights {args.version}"
        case EvaluateArgs():
            text = f"evaluate weights {args.version} on {args.num_problems} held-out problems"
    return (step + text)[:LONGEST]
