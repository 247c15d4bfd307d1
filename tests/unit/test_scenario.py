import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bench.errors import ScenarioError
from bench.plan import Resources, plan, unused_rules
from bench.scenario import Data, Matrix, Optimizer, Rule, Scenario
from bench.scenario_file import load_scenario, parse_scenario

SHIPPED = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
VALID = "matrix: {model: llama-tiny, strategy: z2}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


def load(file: Path, text: str) -> Scenario:
    file.write_text(text, encoding="utf-8")
    return load_scenario(file)


def refusal(file: Path, text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load(file, text)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    return message


def matrix(text: str) -> str:
    return f"matrix: {{model: llama-tiny, strategy: z2, {text}}}\n"


def bomb(levels: int, width: int) -> str:
    """Lists of lists behind the alias ``*bomb``; unfolded, they are ``width ** levels`` words."""
    lines = ["a0: &a0 lol"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join([*lines, f"bomb: &bomb [{', '.join([f'*a{levels - 1}'] * width)}]\n"])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenario_loads_and_plans(path: Path) -> None:
    scenario = load_scenario(path)
    large = Resources(device="cpu", slots=64, memory_bytes=2**40, shared=True)
    assert {entry.skip_reason for entry in plan(scenario, large)} == {None}
    assert unused_rules(scenario) == []


def test_scenarios_are_shipped() -> None:
    assert "smoke" in {path.stem for path in SHIPPED}


def test_defaults_and_scalars_become_axes(file: Path) -> None:
    scenario = load(file, matrix("world_size: [1, 2], dtype: fp32"))
    assert (scenario.matrix.model, scenario.matrix.world_size) == (("llama-tiny",), (1, 2))
    assert (scenario.matrix.dtype, scenario.matrix.train_batch_size) == (("fp32",), None)
    assert (scenario.repeat, scenario.data, scenario.exclude) == (1, Data(), ())


@pytest.mark.parametrize(
    ("text", "stacks"),
    [
        ("installed", (None,)),
        ("deepspeed==0.17.5", ("deepspeed==0.17.5",)),
        ("[null, transformers == 4.57.0  DeepSpeed==0.18.0]", (None, "deepspeed==0.18.0 transformers==4.57.0")),
        ("deepspeed==0.19.1+cpu", ("deepspeed==0.19.1+cpu",)),
    ],
)
def test_stacks_are_exact_releases_in_one_spelling(file: Path, text: str, stacks: tuple[str | None, ...]) -> None:
    assert load(file, matrix(f"stack: {text}")).matrix.stack == stacks


@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        (VALID + "repeats: 2", "repeats", "repeat"),
        (VALID + "wamup_steps: 2", "wamup_steps", "warmup_steps"),
        (matrix("wrold_size: 2"), "matrix.wrold_size", "world_size"),
        (VALID + "exclude: [{model: gpt2}, {stratgy: z1}]", "exclude.1.stratgy", "strategy"),
        (VALID + "include: [{seq_lenght: 64}]", "include.0.seq_lenght", "seq_length"),
        (VALID + "data: {kid: text}", "data.kid", "kind"),
        (VALID + "optimizer: {weight_dekay: 0.1}", "optimizer.weight_dekay", "weight_decay"),
    ],
)
def test_misspelt_key_is_named_with_the_nearest(file: Path, text: str, key: str, meant: str) -> None:
    assert f"unknown key '{key}'; did you mean '{meant}'?; valid here: " in refusal(file, text)


def test_misspelt_zero_key_is_named_with_the_nearest(file: Path) -> None:
    message = refusal(file, VALID + "zero_optimization: {reduce_bucket: 5}")
    assert "unknown zero_optimization key 'reduce_bucket'; did you mean 'reduce_bucket_size'?" in message
    assert "set by the strategy" in refusal(file, VALID + "zero_optimization: {stage: 2}")


@pytest.mark.parametrize("axis", Matrix.model_fields)
def test_axis_at_top_level_is_sent_under_matrix(file: Path, axis: str) -> None:
    assert f"unknown key '{axis}' (an axis: it belongs under 'matrix')" in refusal(file, VALID + f"{axis}: 2")


@pytest.mark.parametrize("where", ["matrix: {model: gpt2, strategy: [z1, %s]}", VALID + "exclude: [{strategy: %s}]"])
def test_unknown_strategy(file: Path, where: str) -> None:
    message = refusal(file, where % "zero2")
    assert "unknown strategy 'zero2'" in message
    assert "valid: ddp, fsdp2, z0, z1, z1-bf16-optimizer, z1-multi-rank-off, z1-offload, z2," in message
    assert "did you mean 'z3'?" in refusal(file, where % "z33")


@pytest.mark.parametrize("value", ["-1", "0", "2.0", "0.5", "true", "'2'", "two", "null", "[1, 0]", "{a: 1}", ".nan"])
@pytest.mark.parametrize("axis", ["world_size", "train_micro_batch_size_per_gpu", "seq_length"])
def test_size_that_is_no_positive_whole_number(file: Path, axis: str, value: str) -> None:
    place = 1 if value.startswith("[") else 0
    assert f"'matrix.{axis}.{place}': " in refusal(file, matrix(f"{axis}: {value}"))


@pytest.mark.parametrize("line", ["repeat: 0", "steps: -3", "warmup_steps: 0", "seed: -1", "steps: '5'", "seed: true"])
def test_counts_outside_the_matrix(file: Path, line: str) -> None:
    key = line.split(":")[0]
    assert f"'{key}': " in refusal(file, VALID + line)


@pytest.mark.parametrize(
    "line", ["timeout_s: true", "optimizer: {lr: true}", "optimizer: {lr: '0.1'}", "optimizer: {lr: .inf}"]
)
def test_rate_that_is_no_finite_number(file: Path, line: str) -> None:
    refusal(file, VALID + line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (matrix("seq_length: 1"), "'matrix.seq_length.0'"),
        (matrix("dtype: float16"), "'matrix.dtype.0': Input should be 'fp32', 'bf16' or 'fp16'; did you mean 'fp16'?"),
        (matrix("world_size: []"), "'matrix.world_size'"),
        ("matrix: {model: [], strategy: z2}", "'matrix.model'"),
        ("matrix: {model: gpt2}", "'matrix.strategy' is required"),
        ("seed: 1", "'matrix' is required"),
        (VALID + "exclude: [{}]", "'exclude.0': an empty rule would match every cell"),
        (VALID + "include: [{model: gpt2}, {}]", "'include.1': an empty rule"),
        (VALID + "exclude: {model: gpt2}", "'exclude'"),
        (VALID + "data: {path: /tmp}", "'path' is only used with kind: text"),
        (VALID + "optimizer: {lr: -1}", "'optimizer.lr'"),
        (VALID + "timeout_s: 0", "'timeout_s'"),
        (matrix("stack: 0.17"), "'matrix.stack.0': a stack is 'package==version', as deepspeed==0.17.5"),
        (matrix("stack: ''"), "'matrix.stack.0': a stack is 'package==version'"),
        (matrix("stack: []"), "'matrix.stack'"),
        (matrix("stack: [installed, deepspeed>=0.17]"), "'matrix.stack.1': 'deepspeed>=0.17' is no exact release"),
        (matrix("stack: deepspeed"), "'deepspeed' is no exact release; write deepspeed==VERSION (got 'deepspeed')"),
        (matrix("stack: deepspeed==0.17.*"), "'deepspeed==0.17.*' is no exact release"),
        (matrix("stack: deepspeed==../x"), "is no exact release"),
        (matrix("stack: torch==2.6.0"), "'matrix.stack.0': torch is shared by all stacks"),
        (matrix("stack: depspeed==0.17.5"), "did you mean 'deepspeed'?; valid: accelerate, deepspeed, transformers"),
        (matrix("stack: deepspeed==0.1 DeepSpeed==0.2"), "deepspeed is named twice"),
        (VALID + "exclude: [{stack: nonsense}]", "'exclude.0.stack.0'"),
    ],
)
def test_wrong_value_is_named(file: Path, text: str, message: str) -> None:
    assert message in refusal(file, text)


@pytest.mark.parametrize("text", ["", "[]", "- matrix", "just words", "5", "null", "--- \n..."])
def test_not_a_mapping(file: Path, text: str) -> None:
    assert "a scenario is a mapping with a 'matrix' section" in refusal(file, text)


@pytest.mark.parametrize(
    "text", [VALID + "seed: 1\nseed: 2", matrix("dtype: fp32, dtype: bf16"), VALID + "data: {a: 1, a: 1}"]
)
def test_key_given_twice(file: Path, text: str) -> None:
    assert re.search(r"the key '(seed|dtype|a)' is given twice[\s\S]*line \d", refusal(file, text))


@pytest.mark.parametrize("text", ["{1: 2}", "{true: 1}", "{[a]: 1}", "{null: 1}", "{2026-01-01: 1}", "{{a: b}: c}"])
def test_key_that_is_no_word(file: Path, text: str) -> None:
    assert "a key must be a word" in refusal(file, text)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("5e8", 500_000_000),
        ("1_000", 1000),
        ("1E3", 1000),
        ("2.5e3", 2500),
        ("1e+3", 1000),
        ("2.5e+3", 2500),
    ],
)
def test_whole_number_however_written(file: Path, written: str, value: int) -> None:
    read = load(file, VALID + f"zero_optimization: {{reduce_bucket_size: {written}}}\nsteps: {written}")
    assert read.zero_optimization == {"reduce_bucket_size": value}
    assert type(read.zero_optimization["reduce_bucket_size"]) is int
    assert read.steps == value


@pytest.mark.parametrize("written", ["true", "false"])
def test_flag_of_the_zero_section_stays_a_flag(file: Path, written: str) -> None:
    value = load(file, VALID + f"zero_optimization: {{overlap_comm: {written}}}").zero_optimization["overlap_comm"]
    assert value is (written == "true")


def test_small_number_is_a_float_and_no_step_count(file: Path) -> None:
    assert load(file, VALID + "optimizer: {lr: 1e-4}").optimizer.lr == 1e-4
    assert load(file, VALID + "optimizer: {lr: 1}").optimizer.lr == 1.0
    assert "'steps'" in refusal(file, VALID + "steps: 1e-4")
    assert "'seed'" in refusal(file, VALID + "seed: 1e400")


@pytest.mark.parametrize(
    "make",
    [
        lambda file: None,  # no such file
        lambda file: file.mkdir(),
        lambda file: file.write_bytes(b"\x7fELF\x02\xff\xfe\x00"),
        lambda file: file.symlink_to(file),
    ],
    ids=["missing", "folder", "binary", "loop"],
)
def test_unreadable_file(file: Path, make: Any) -> None:
    make(file)
    with pytest.raises(ScenarioError, match=re.escape(f"{file}: cannot read the scenario: ")):
        load_scenario(file)


@pytest.mark.parametrize(
    "text", ["matrix: [", "a: b: c", "\tmatrix:", "matrix: *nowhere", "a: \x07", "%YAML 9.9\n---\na"]
)
def test_broken_yaml(file: Path, text: str) -> None:
    assert "not valid YAML" in refusal(file, text)


@pytest.mark.parametrize("tag", ["object/apply:os.mkdir", "object/new:os.mkdir", "name:os.mkdir", "module:os", "tuple"])
def test_python_tag_is_refused_and_not_run(file: Path, tmp_path: Path, tag: str) -> None:
    target = tmp_path / "made"
    assert "not valid YAML" in refusal(file, VALID + f"description: !!python/{tag} ['{target}']")
    assert not target.exists()


@pytest.mark.parametrize(
    "text",
    [
        "!!map [a]",
        VALID + "seed: !!int ''",
        VALID + "seed: !!bool abc",
        VALID + "seed: !!timestamp abc",
        "a: !exponent []",
    ],
)
def test_tag_on_the_wrong_kind_of_value(file: Path, text: str) -> None:
    refusal(file, text)


@pytest.mark.parametrize(("text", "key"), [("a[b: 1", "a[b"), (VALID + "data: {'k[0]': 1}", "data.k[0]")])
def test_key_with_a_bracket_is_named(file: Path, text: str, key: str) -> None:
    assert f"unknown key '{key}'" in refusal(file, text)


def test_huge_number(file: Path) -> None:
    refusal(file, matrix(f"seq_length: -0x{'f' * 4000}"))


def test_all_mistakes_are_reported_at_once(file: Path) -> None:
    message = refusal(
        file,
        "sed: 1\nrepeat: 0\nmatrix: {model: gpt2, strategy: [z1, z9], world_size: [0, 2, -1]}\ndata: {kind: txt}",
    )
    for part in (
        "'sed'",
        "'repeat'",
        "'matrix.strategy.1'",
        "'matrix.world_size.0'",
        "'matrix.world_size.2'",
        "'data.kind'",
    ):
        assert part in message
    assert "world_size.1" not in message
    assert len(message.splitlines()) == 6


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3000,
        "{a: " * 3000,
        "matrix: &m {model: *m, strategy: z2}",
        "matrix: {model: &x [*x], strategy: z2}",
        "&a {matrix: *a}",
        "&a [*a]",
        bomb(4, 4) + "matrix: {model: *bomb, strategy: z2}",
    ],
    ids=["lists", "mappings", "own model", "own list", "own matrix", "own document", "bomb"],
)
def test_recursion_and_aliases_end_in_a_message(file: Path, text: str) -> None:
    refusal(file, text)


@pytest.mark.parametrize("axes", ["model: *bomb, strategy: z2", "model: gpt2, strategy: *bomb"])
def test_message_does_not_unfold_an_alias_bomb(file: Path, axes: str) -> None:
    assert len(refusal(file, f"{bomb(5, 8)}matrix: {{{axes}}}")) < 20_000


WORDS = [
    *(key for model in (Scenario, Matrix, Rule, Data, Optimizer) for key in model.model_fields),
    *("llama-tiny", "z2", "ddp", "text", "AdamW", "bf16", "stage", "overlap_comm", "reduce_bucket_size"),
]
word = st.sampled_from(WORDS) | st.text(st.characters(codec="utf-8"), max_size=8)
scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.binary(max_size=4) | word
value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner, max_size=4),
    max_leaves=12,
)
axes = st.fixed_dictionaries(
    {"model": word, "strategy": st.just("z2")},
    optional={key: value for key in Matrix.model_fields if key not in ("model", "strategy")},
)
sections = st.fixed_dictionaries(
    {"matrix": axes}, optional={key: value for key in Scenario.model_fields if key != "matrix"}
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@example({"matrix": {"model": "llama-tiny", "strategy": "z2"}})
@given(data=st.dictionaries(word, value, max_size=5) | sections)
def test_any_mapping_is_a_scenario_or_a_scenario_error(tmp_path: Path, data: dict[str, Any]) -> None:
    file = tmp_path / "any.yaml"
    try:
        scenario = load(file, yaml.safe_dump(data, allow_unicode=True))
    except ScenarioError as error:
        assert str(error).startswith(str(file))  # noqa: PT017
    else:
        assert Scenario.model_validate(scenario.model_dump()) == scenario


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text("matrix: {}[],-&*?|>'\"#\n\t0e", max_size=40))
def test_any_text_is_a_scenario_or_a_scenario_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ScenarioError):
        load(tmp_path / "any.yaml", text)


@pytest.mark.parametrize(
    ("value", "words"), [("maximum", "or max"), ("4", "written without quotes"), (0, "greater than 0")]
)
def test_a_micro_batch_is_a_number_or_max(value: Any, words: str) -> None:
    matrix = {"model": "m", "strategy": "z2", "train_micro_batch_size_per_gpu": value}
    with pytest.raises(ScenarioError, match=words):
        parse_scenario({"matrix": matrix}, "s.yaml")


def test_limits_of_the_search_are_checked() -> None:
    matrix = {"model": "m", "strategy": "z2", "train_micro_batch_size_per_gpu": ["max", 2]}
    found = parse_scenario({"matrix": matrix, "largest_batch": {"at_most": 9}}, "s.yaml")
    assert found.matrix.train_micro_batch_size_per_gpu == ("max", 2)
    assert (found.largest_batch.memory_gib, found.largest_batch.at_most) == (None, 9)
    with pytest.raises(ScenarioError, match=r"unknown key 'largest_batch\.memory'"):
        parse_scenario({"matrix": matrix, "largest_batch": {"memory": 9}}, "s.yaml")
