"""Law 10: a wrong spec is refused at load, with every problem, its key and the fix."""

import pickle
from pathlib import Path

import pytest

from ratchet.spec.loading import load_spec, parse_spec, spec_from_mapping
from ratchet.spec.problems import InvalidSpec, SpecProblem

GOOD = """
name: good
policy: {model: tiny}
generation: {max_new_tokens: 4}
grpo:
  num_prompts_per_step: 4
  num_generations_per_prompt: 4
  max_num_steps: 3
environment: {name: arithmetic}
"""


def problems_of(text: str, *overrides: str) -> list[SpecProblem]:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(text, overrides, source="good.yaml")
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("override", "key", "found", "allowed", "hint"),
    [
        # unknown, misspelt, misplaced
        ("grpo.max_num_stepz=1", "grpo.max_num_stepz", "unknown key", "max_num_steps", "grpo.max_num_steps?"),
        ("policy.max_num_steps=1", "policy.max_num_steps", "unknown key", "model", "grpo.max_num_steps?"),
        ("lr=1", "lr", "unknown key", "seed", "policy.optimizer.lr?"),
        ("grpo.every=1", "grpo.every", "unknown key", "", "evaluation.every or checkpointing.every?"),
        ("evaluatoin.every=1", "evaluatoin", "unknown key", "evaluation", "evaluation?"),
        ("zebra=1", "zebra", "unknown key", "name, mode, seed, policy", ""),
        # out of bounds
        ("grpo.num_prompts_per_step=-1", "grpo.num_prompts_per_step", "-1", "an integer > 0", ""),
        ("grpo.num_generations_per_prompt=1", "grpo.num_generations_per_prompt", "1", ">= 2", ""),
        ("generation.top_p=1.5", "generation.top_p", "1.5", "a number > 0 and <= 1", ""),
        ("policy.optimizer.betas=[0.9, 1.5]", "policy.optimizer.betas.1", "1.5", "<= 1", ""),
        ("name=Not Good", "name", '"Not Good"', "matching", "lower-case"),
        # wrong type
        ("seed=abc", "seed", '"abc"', "an integer >= 0", ""),
        ("seed=1.5", "seed", "1.5", "an integer", ""),
        ("policy=tiny", "policy", '"tiny"', "a section with the keys model", ""),
        ("generation.stop_strings=x", "generation.stop_strings", '"x"', "a list, each text", ""),
        ("policy.train_global_batch_size=x", "policy.train_global_batch_size", '"x"', "or null", ""),
        ("policy.model=", "policy.model", "nothing (null)", "text", ""),
        # not among the choices
        ("policy.precision=bfloat", "policy.precision", '"bfloat"', "float32 | bfloat16", "bfloat16?"),
        ("refit.transport=nixl", "refit.transport", '"nixl"', "ipc", ""),
        # contradictions
        ("policy.train_global_batch_size=9", "policy.train_global_batch_size", "9, but", "", "set it to 16"),
        (
            "policy.train_micro_batch_size=99",
            "policy.train_micro_batch_size",
            "more than the 16",
            "",
            "16 or less",
        ),
        ("generation.max_new_tokens=2000", "generation.max_new_tokens", "leaves no room", "", ""),
        ("loss.importance_weight_min=3", "loss.importance_weight_min", "more than", "", ""),
        # the override itself
        ("seed", "--set seed", "no key=value", "a.b=c", ""),
        ("a..b=1", "--set a..b=1", "no key=value", "a.b=c", ""),
        ("name.x=1", "name.x", 'name is "good", not a section', "", ""),
        ("seed=[1", "seed", "'[1'", "a YAML value", "quote"),
    ],
)
def test_a_problem_names_key_found_allowed_and_fix(
    override: str, key: str, found: str, allowed: str, hint: str
) -> None:
    (problem,) = problems_of(GOOD, override)
    assert problem.key == key
    assert found in problem.found
    assert allowed in problem.allowed
    assert hint in problem.hint
    assert "\n" not in str(problem)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (
            ("asynchronous.max_staleness=1", "loss.importance_sampling_correction=false"),
            "loss.importance_sampling_correction",
        ),
        (
            ("loss.importance_sampling_rule=sequence_mask", "loss.importance_sampling_level=sequence"),
            "loss.importance_sampling_rule",
        ),
        (("asynchronous.max_staleness=2",), "asynchronous.max_staleness"),
        (("asynchronous.max_staleness=0", "asynchronous.refit=keep"), "asynchronous.max_staleness"),
        (
            ("asynchronous.refit=keep", "asynchronous.max_buffered_groups=1"),
            "asynchronous.max_buffered_groups",
        ),
        (
            ("asynchronous.sampler=weight_fifo", "asynchronous.max_buffered_groups=999"),
            "asynchronous.max_buffered_groups",
        ),
        (("asynchronous.min_groups_to_train=999",), "asynchronous.min_groups_to_train"),
        (("placement.kind=colocated", "asynchronous.max_staleness=1"), "placement.kind"),
        (("placement.kind=colocated", "asynchronous.refit=keep"), "placement.kind"),
        (("refit.codec=delta",), "refit.codec"),
    ],
)
def test_two_keys_that_cannot_both_hold(overrides: tuple[str, ...], key: str) -> None:
    (problem,) = problems_of(GOOD, *overrides)
    assert problem.key == key


def test_a_missing_key_says_what_it_takes() -> None:
    (problem,) = problems_of(GOOD.replace("policy: {model: tiny}", "policy: {}"))
    assert problem.key == "policy.model"
    assert problem.found == "missing"
    assert problem.allowed == "text"
    assert "Hugging Face" in problem.hint


def test_a_misspelt_required_key_is_one_problem() -> None:
    (problem,) = problems_of(GOOD.replace("policy:", "polcy:"))
    assert (problem.key, problem.hint) == ("polcy", "did you mean policy?")


def test_all_problems_come_at_once() -> None:
    found = problems_of(GOOD + "seed: 1\nseed: 2\n", "generation.temperature=0", "grpo.stepz=1", "nonsense")
    assert [problem.key for problem in found] == [
        "seed",
        "--set nonsense",
        "generation.temperature",
        "grpo.stepz",
    ]


@pytest.mark.parametrize(
    ("text", "key", "found"),
    [
        (GOOD + "grpo: {max_num_steps: 9}\n", "grpo", "set twice, on lines 5 and 10 of good.yaml"),
        (
            GOOD.replace("{model: tiny}", "{model: tiny, model: x}"),
            "policy.model",
            "set twice, on lines 3 and 3",
        ),
        ("a: [", "good.yaml:1:5", "not YAML"),
        ("a: 1\n b: 2", "good.yaml:2:3", "not YAML"),
        ("a: 1\n---\nb: 2", "good.yaml:2:1", "not YAML"),
        ("a: !!python/name:os.system x", "good.yaml:1:4", "not YAML"),
        ("a: \x01", "good.yaml", "not YAML"),
        ("- 1", "good.yaml", "[1]"),
        ("", "good.yaml", "nothing"),
        (GOOD + "extra: &loop {again: *loop}\n", "extra", "unknown key"),
    ],
)
def test_text_that_is_no_spec(text: str, key: str, found: str) -> None:
    (problem, *_) = problems_of(text)
    assert problem.key == key
    assert found in problem.found


def test_numbers_and_lists_mean_what_they_say() -> None:
    spec = parse_spec(
        GOOD,
        [
            "policy.optimizer.lr=1e-5",  # text, by YAML 1.1
            "policy.optimizer.betas=[0.9, 0.95]",
            r'generation.stop_strings=["\n", "."]',
            "environment.options.limit=1e3",
            "environment.options.day=2024-01-01",
            "policy.train_global_batch_size=null",
            "name=2-digits",
        ],
    )
    assert spec.policy.optimizer.lr == 1e-5
    assert spec.policy.optimizer.betas == (0.9, 0.95)
    assert spec.generation.stop_strings == ("\n", ".")
    assert spec.environment.options == {"limit": 1000.0, "day": "2024-01-01"}
    assert spec.policy.train_global_batch_size is None


def test_overrides_win_over_the_file_and_the_last_over_the_first(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    spec = load_spec(path, ["grpo.max_num_steps=5", "grpo.max_num_steps=7"])
    assert spec.grpo.max_num_steps == 7
    assert spec.grpo.num_prompts_per_step == 4


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(GOOD)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name, found, hint in [
        ("dmeo.yaml", "no such file", f"did you mean {tmp_path / 'demo.yaml'}?"),
        ("no/such.yaml", "no such file", f"there is no folder {tmp_path / 'no'} either"),
        ("", "Is a directory", ""),
        ("bytes.yaml", "not UTF-8 text", ""),
    ]:
        with pytest.raises(InvalidSpec) as caught:
            load_spec(tmp_path / name)
        (problem,) = caught.value.problems
        assert (problem.key, problem.found, problem.hint) == (str(tmp_path / name), found, hint)


def test_a_mapping_with_a_key_that_is_no_text() -> None:
    with pytest.raises(InvalidSpec, match="1"):
        spec_from_mapping({1: 2})  # pyright: ignore[reportArgumentType]


def test_an_invalid_spec_survives_pickling() -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(GOOD, ["seed=-1", "zebra=1"])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.problems == caught.value.problems
    assert str(copy) == str(caught.value)
