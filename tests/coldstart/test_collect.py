"""`metaagentx coldstart`: settings, held-out tasks, row targets, resuming."""

import asyncio
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from metaagentx.cli.coldstart import describe, run_cold_start
from metaagentx.cli.main import app
from metaagentx.coldstart.collect import TEACHER_ROLLOUT, CollectOptions, teacher_config, teacher_tasks
from metaagentx.coldstart.demonstrations import Demonstration, TeacherUsage, read_rows
from metaagentx.coldstart.teachers import PROGRAMMED, Teacher
from metaagentx.config import Config, RolloutConfig, load_config
from metaagentx.config.bundled import find_recipe
from metaagentx.errors import MetaAgentXError
from metaagentx.types import Role

SORTING = "gym:number_sorting?max_numbers=4"
TWO = ["rollout.designs=2"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of the command."""

    out: Path
    tasks: str | None = None
    recipe: Path | None = None
    overrides: Sequence[str] = ()
    teacher: Teacher = field(default_factory=Teacher)
    count: int = 1000
    batch: int = 256
    seed: int | None = None
    targets: Mapping[Role, int] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        return teacher_config(self.recipe, self.tasks, self.overrides)

    @property
    def options(self) -> CollectOptions:
        return CollectOptions(
            tasks=self.tasks or self.config.tasks.train,
            seed=self.config.seed if self.seed is None else self.seed,
            count=self.count,
            teacher=self.teacher.model,
            manual=self.teacher.model != PROGRAMMED,
            batch=self.batch,
            targets=self.targets,
        )

    def run(self) -> tuple[list[Demonstration], TeacherUsage]:
        return asyncio.run(run_cold_start(self.out, self.config, self.options, self.teacher))


def own_tasks(path: Path, numbers: range) -> str:
    """A finite source that the programmed teacher can solve."""
    questions = [f"Solve this multiplication: {number} * 7. Give the number." for number in numbers]
    lines = [
        json.dumps({"question": question, "grader": "math", "answer": str(number * 7)})
        for number, question in zip(numbers, questions, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return f"jsonl:{path}"


def recipe(tmp_path: Path, tasks: str) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(
        f'seed = 5\nsteps = 1\nstages = [{{ steps = 1, executor = 1e-4 }}]\n[model]\npath = "preset:nano"\n'
        f"[tasks]\ntrain = {json.dumps(tasks)}\nheld_out = 10\n"
    )
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Request:
    """A cold start by a recipe on a file of tasks, finished, in two batches."""
    place = tmp_path_factory.mktemp("done")
    path = recipe(place, own_tasks(place / "own.jsonl", range(10, 30)))
    request = Request(out=place / "out", recipe=path, count=4, batch=2, overrides=TWO)
    rows, usage = request.run()
    assert (usage.tasks, usage.executions) == (4, 8) and rows
    held_out = {task.id for task in request.config.load_tasks().held_out}
    assert len(held_out) == 10 and not held_out & {row.task for row in rows}
    return request


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*.json*"))}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 1}, "seed = 5, now 1: use the same or another --out"),
        ({"count": 5}, "count = 4, now 5: use"),
        ({"batch": 4}, "batch = 2, now 4: use"),
        ({"tasks": SORTING}, 'tasks = "jsonl:'),
        ({"teacher": Teacher("m", "http://localhost:1/v1/")}, 'teacher = "programmed", now "m" (and 2 more): use'),
        ({"overrides": []}, "rollout.designs = 2, now 1: use"),
        ({"overrides": [*TWO, "rollout.executor_tokens=64"]}, "rollout.executor_tokens = 8192, now 64: use"),
        ({"overrides": [*TWO, "tasks.held_out=9"]}, "recipe.tasks.held_out = 10, now 9: use"),
        ({"overrides": [*TWO, "reward.allow_hard_coded=true"]}, "reward.allow_hard_coded = false, now true: use"),
        ({"overrides": [*TWO, "seed=6"]}, "seed = 5, now 6 (and 1 more): use"),
        ({"overrides": [*TWO, "prompts.designer_system=Hi"]}, 'prompts.designer_system, now "Hi": use'),
        ({"overrides": [*TWO, "rollout.dialect=lenient"]}, 'rollout.dialect, now "lenient": use'),
        ({"overrides": [*TWO, "rollout.executor_temperature=2"]}, "rollout.executor_temperature, now 2.0: use"),
    ],
)
def test_work_done_with_other_settings_is_refused_by_its_name(
    changes: Mapping[str, object], words: str, done: Request
) -> None:
    before = contents(done.out)
    with pytest.raises(MetaAgentXError) as caught:
        replace(done, **changes).run()  # type: ignore[arg-type]
    made = str(caught.value).removeprefix(f"{done.out} was made ")
    assert made.startswith((f"with {words}", f"without {words}"))
    assert "\n" not in str(caught.value) and contents(done.out) == before


def test_demonstrations_are_collected_under_the_recipes_prompts(tmp_path: Path) -> None:
    path = recipe(tmp_path, own_tasks(tmp_path / "own.jsonl", range(10, 30)))
    told = "Close with <delivery>\\\\boxed{result}</delivery>."
    path.write_text(
        f'{path.read_text()}[prompts]\ndesigner_system = ""\ndesigner_request = "Team for: {{question}}"\n'
        f'agent_instruction = "{told}"\n'
    )
    rows, usage = Request(out=tmp_path / "out", recipe=path, count=8, overrides=TWO).run()
    assert usage.solved and {row.role for row in rows} == {*Role}
    for row in rows:
        if row.role is Role.DESIGNER:
            assert [message["role"] for message in row.messages] == ["user", "assistant"]
            assert row.messages[0]["content"].startswith("Team for: Solve this multiplication")
        else:
            told = (
                r"(Solve the task|Say how to solve the task|Check the result)\.\n\nClose with <delivery>\\boxed{result}"
            )
            assert re.match(told, row.messages[0]["content"])


def test_what_changes_no_rows_may_change(done: Request) -> None:
    """Deadlines, retries, and how many rows are enough: the same batches are taken, and nothing is asked again."""
    before = contents(done.out / "batches")
    patient = [*TWO, "rollout.sample_seconds=300", "rollout.in_flight=4", "rollout.retries=5", "optimizer.beta2=0.9"]
    rows, _ = replace(done, overrides=patient, targets={Role.DESIGNER: 1}).run()
    assert sum(row.role is Role.DESIGNER for row in rows) == 1 and rows == read_rows(done.out / "coldstart.jsonl")
    assert contents(done.out / "batches") == before


def test_rows_of_an_unknown_origin_are_refused(tmp_path: Path) -> None:
    (tmp_path / "batches").mkdir()
    (tmp_path / "batches" / "batch-00000.jsonl").write_text("{}\n")
    with pytest.raises(
        MetaAgentXError, match=r"holds batch-00000\.jsonl, and nothing says which settings.*another --out"
    ):
        Request(out=tmp_path, tasks=SORTING, count=1).run()


def test_tasks_that_have_changed_are_refused(done: Request) -> None:
    assert done.recipe is not None
    file = done.recipe.with_name("own.jsonl")
    before = file.read_text()
    own_tasks(file, range(50, 70))
    with pytest.raises(
        MetaAgentXError, match=r"batch-0000.\.jsonl was made with other tasks than there are now"
    ) as caught:
        done.run()
    assert "\n" not in str(caught.value)
    file.write_text(before)


def test_too_few_rows_are_told(tmp_path: Path) -> None:
    request = Request(out=tmp_path, tasks=SORTING, count=12, targets={Role.DESIGNER: 3, Role.EXECUTOR: 2})
    chat = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})
    rows = [Demonstration(chat, role, "t", "s", "single", "x") for role in (*Role, Role.EXECUTOR)]
    said = list(describe(tmp_path, request.options, rows, TeacherUsage(tasks=12, executions=12, solved=6)))
    assert said[0] == f"{tmp_path}/coldstart.jsonl: 3 rows kept; 12 executions, 50% solved"
    assert said[1] == "1 designer, 2 executor rows, from 12 tasks"
    assert "Fewer than --designer-rows 3: all 12 tasks of --count are used" in said[2] and len(said) == 3


@pytest.mark.parametrize(
    "changed",
    [
        lambda own, other: {},
        lambda own, other: {"seed": 1},
        lambda own, other: {"tasks": f"{own} + {other}"},
        lambda own, other: {"tasks": f"{other}", "seed": 3},
    ],
    ids=["the recipe's", "another seed", "a larger mixture", "another file"],
)
def test_held_out_tasks_are_never_the_teachers(
    changed: Callable[[str, str], dict[str, object]], tmp_path: Path
) -> None:
    own, other = own_tasks(tmp_path / "own.jsonl", range(10, 50)), own_tasks(tmp_path / "other.jsonl", range(30, 70))
    request = replace(Request(out=tmp_path, recipe=recipe(tmp_path, own), count=200), **changed(own, other))  # type: ignore[arg-type]
    held_out = {task.question for task in request.config.load_tasks().held_out}
    assert len(held_out) == 10
    questions = [task.question for task in teacher_tasks(request.config, request.options)]
    assert len(questions) == 200 and not held_out & set(questions)
    if request.tasks is None:
        assert len(set(questions[:30])) == 30, "a finite source gives each task once before any again"


def test_a_teacher_is_not_compared_with_itself() -> None:
    """One design and one execution are enough for it; a misspelt key is not."""
    tiny = find_recipe("tiny")
    config = teacher_config(tiny, None, [])
    assert (config.rollout.designs, config.rollout.executions, config.rollout.designer_tokens) == (1, 1, 8192)
    assert (config.rollout.temperature, config.seed, config.tasks.held_out) == (0.7, 0, 64)
    with pytest.raises(MetaAgentXError, match=r'--set "rollout.design=2": unknown key "rollout.design"; did you mean'):
        teacher_config(tiny, None, ["rollout.design=2"])
    with pytest.raises(MetaAgentXError, match="no tasks for the teacher: give TASKS, or --recipe"):
        teacher_config(None, None, [])
    assert teacher_config(None, None, [f"tasks.train={SORTING}"]).tasks.train == SORTING


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        (Teacher("m", "http://x/v1", extra_body="{"), "--extra-body is not JSON (Expecting"),
        (Teacher("m", "http://x/v1", extra_body="[" * 100_000), "--extra-body is not JSON (maximum recursion"),
        (
            Teacher("m", "http://x/v1", extra_body='{"top_p": NaN}'),
            "--extra-body is not JSON (NaN is not a JSON value)",
        ),
        (Teacher("m", "http://x/v1", extra_body="[1]"), "--extra-body is not a JSON object: expected one, such as '{"),
        (Teacher("m", "http://x/v1", extra_body='{"stream": true}'), "invalid key 'stream' in extra_body"),
        (Teacher("m", "http://x/v1", "NO_KEY_HERE"), "--api-key-env NO_KEY_HERE: this variable is not set or empty"),
        (Teacher(base_url="http://x/v1"), "--base-url is for a teacher on a server: name its model with --teacher"),
        (Teacher(key_env="NO_KEY_HERE"), "--api-key-env is for a teacher on a server"),
        (Teacher(extra_body="{}"), "--extra-body is for a teacher on a server"),
    ],
)
def test_a_teacher_that_cannot_be_asked_is_one_line_and_leaves_nothing(
    teacher: Teacher, words: str, tmp_path: Path
) -> None:
    with pytest.raises(MetaAgentXError) as caught:
        Request(out=tmp_path / "out", tasks=SORTING, teacher=teacher).run()
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


PAGE = (Path(__file__).parents[2] / "docs" / "coldstart.md").read_text()


def test_the_pages_commands_are_as_the_command_line_has_them() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [shlex.split(line)[1:] for block in blocks for line in block.splitlines() if line.startswith("metaagentx ")]
    assert {name for name, *_ in lines} == {"coldstart", "sft", "train"} and len(lines) > 5
    for name, *words in lines:
        parsed = group.commands[name].make_context(name, words).params
        if recipe := parsed.get("recipe"):
            assert load_config(find_recipe(recipe), parsed["overrides"] or [])


@pytest.mark.parametrize("name", ["coldstart", "sft"])
def test_the_page_has_every_option_with_its_default(name: str) -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    heading = {"coldstart": "## Options of `metaagentx coldstart`", "sft": "## SFT"}[name]
    table = PAGE.partition(heading)[2].partition("| option |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| ([^|]*) \|", table, re.MULTILINE))
    shown = [parameter for parameter in group.commands[name].params if not getattr(parameter, "hidden", False)]
    parameters = {p.opts[0] if p.opts[0].startswith("-") else p.opts[0].upper(): p for p in shown}
    assert rows.keys() == parameters.keys() - {"--help"}
    for option, parameter in parameters.items():
        if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
            assert float(rows[option]) == parameter.default, option
    for key, default in re.findall(r"^\| `rollout\.(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE):
        assert {**dict(RolloutConfig()), **TEACHER_ROLLOUT}[key] == float(default)
