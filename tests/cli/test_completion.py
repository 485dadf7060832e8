"""Completion of commands, recipes, options, values and runs."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import mistake, run_python
from pixelpart import attacks, data, masks, models, objectives, recipes
from pixelpart.cli.completion import POSITIONALS, SCRIPTS, VALUES, candidates
from pixelpart.cli.main import COMMANDS, main
from pixelpart.config import Config, flag_of, flat
from pixelpart.data.augment import AUGMENTS
from pixelpart.data.corruptions import CORRUPTIONS
from pixelpart.engine.optimizers import OPTIMIZERS, SCHEDULES
from pixelpart.evaluation.attack_spec import ADAPTIVE, AUTOATTACKS, ENGINES
from pixelpart.evaluation.target import SPLITS
from pixelpart.experiments import EXPERIMENTS
from pixelpart.experiments.common.scales import SCALES
from pixelpart.exports import FORMATS
from pixelpart.masks.policy import TARGETS
from pixelpart.runtime.precision import PRECISIONS
from pixelpart.sweeps.jobs import PLACES


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/at-0", "runs/at-1", "sweeps/grid/runs/0f"):
        Path(name).mkdir(parents=True)
        Path(name, "config.json").write_text(Config().to_json())
    Path("runs/at-0/checkpoints").mkdir()
    Path("runs/at-0/checkpoints/epoch-3.safetensors").touch()
    Path("photos/cats").mkdir(parents=True)


def test_values_are_those_of_the_tables():
    stepped = {f"{kind}20" for kind in (*attacks.ATTACKS, *ADAPTIVE)}
    tables = {
        "--attacks": {"natural", *stepped, *attacks.SEARCHES, *attacks.COMBINED, *AUTOATTACKS},
        "--names": CORRUPTIONS,
        "--model": {name.replace("DEPTH-WIDTH", "34-10") for name in models.MODELS},
        "--data": {*data.SETS, "folder:"},
        "--augment": AUGMENTS,
        "--attack.name": attacks.ATTACKS,
        "--objective.name": objectives.OBJECTIVES,
        "--burn-in.objective": {"same", *objectives.OBJECTIVES},
        "--optim.name": OPTIMIZERS,
        "--optim.schedule": SCHEDULES,
        "--precision": PRECISIONS,
        "--search": {"auto", *PRECISIONS},
        "--mask.rule": {"none", *masks.RULES},
        "--mask.source": masks.SOURCES,
        "--mask.control": masks.CONTROLS,
        "--mask.target": TARGETS,
        "--engine": ENGINES,
        "--split": SPLITS,
        "--on": PLACES,
        "--scale": SCALES,
        "--to": FORMATS,
    }
    for flag, names in tables.items():
        found = {value if flag == "--data" else value.rstrip(":") for value in VALUES[flag]}
        assert found == set(names), flag
    for flag in VALUES.keys() - tables.keys() - {"--methods", "--device", "--mask.layer"}:
        assert flag == "--mask.mean-over"
    assert POSITIONALS["experiment", "name"] == tuple(EXPERIMENTS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {*COMMANDS}),
        ("ev", {"evaluate"}),
        ("--v", {"--version"}),
        ("nonsense ", set()),
        ("train ", {*recipes.RECIPES, "runs/at-0", "runs/at-1", "sweeps/grid/runs/0f"}),
        ("train shapes-part-", {"shapes-part-t", "shapes-part-m"}),
        ("train runs/at-0 --mask.mean", {"--mask.mean", "--mask.mean-over"}),
        ("train nonsense --mask.mean", set()),
        ("train shapes-at --augment crop-flip-cutm", {"crop-flip-cutmix"}),
        ("train shapes-at --objective.name ", {"at", "trades", "mart"}),
        ("train shapes-at --objective.name=t", {"--objective.name=trades"}),
        ("train shapes-at --normalize ", {"true", "false"}),
        ("train shapes-at --data folder:ph", {"folder:photos/"}),
        ("train shapes-at --data folder:photos/", {"folder:photos/cats/"}),
        ("train shapes-at --epochs ", set()),
        ("train shapes-at --out ", set()),
        ("evaluate r", {"runs/at-0", "runs/at-1"}),
        ("evaluate runs/at-0 runs/at-", {"runs/at-0", "runs/at-1"}),
        ("evaluate runs/at-0 --checkpoint ", {"best", "last", "epoch-3"}),
        ("evaluate runs/at-0 --attacks natural,autoattack", {"natural,autoattack", "natural,autoattack-plus"}),
        ("compare runs/at-0 --with runs/at-0 runs/at-1", {"runs/at-1"}),
        ("experiment tr", {"train-iterations"}),
        ("experiment table1 --scale p", {"paper"}),
        ("data g", {"get"}),
        ("data get cifar", {"cifar10", "cifar100"}),
        ("bench train --precision b", {"bf16"}),
        ("completion ", {"bash", "zsh"}),
    ],
)
def test_candidates(line, expected):
    words = line.split(" ")
    assert set(candidates(words)) == expected


def test_every_field_of_a_config_is_completed():
    fields = {flag_of(name) for name in flat(Config())} - {"--schema-version", "--recipe", "--auto"}
    assert fields <= set(candidates(["train", "shapes-at", "--"]))
    assert set(candidates(["train", "shapes-at", ""])) == set(candidates(["train", "shapes-at", "-"]))


def complete_in_bash(line, *, wordbreaks=None):
    """COMPREPLY after Tab at the end of the line, as bash would call the function."""
    code = f'pixelpart() {{ {shlex.quote(sys.executable)} -m pixelpart "$@"; }}\n'
    code += "source <(pixelpart completion bash)\ncompopt() { echo nospace; }\n"
    code += f"COMP_WORDBREAKS={wordbreaks}\n" if wordbreaks else "COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:@'\n"
    code += f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}\n_pixelpart pixelpart\n"
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    result = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, timeout=100, env=os.environ)
    assert result.stderr == ""
    return result.stdout.split()


def test_bash_completes_words_and_replaces_only_what_follows_a_colon():
    assert complete_in_bash("pixelpart evaluate runs/") == ["runs/at-0", "runs/at-1"]
    assert complete_in_bash("pixelpart train shapes-at --data folder:ph") == ["nospace", "photos/"]
    assert complete_in_bash("pixelpart train shapes-at --data folder:ph", wordbreaks="' '") == [
        "nospace",
        "folder:photos/",
    ]
    assert complete_in_bash("pixelpart train shapes-at --out x") == []  # bash then completes file names


def test_scripts_are_printed_and_other_shells_are_refused(capsys):
    for shell, script in SCRIPTS.items():
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == script + "\n"
    mistake(capsys, ["completion", "fish"], "unknown shell 'fish'; choose from bash, zsh")
    mistake(capsys, ["completion"], "required: SHELL")


def test_candidates_are_found_without_torch():
    lines = ["", "train ", "train shapes-at --", "evaluate runs/", "bench ", "experiment ", "runs "]
    code = "import sys; from pixelpart.cli.main import main\n"
    code += f"for line in {json.dumps(lines)}: main(['completion', 'words', *line.split(' ')])\n"
    code += "sys.exit('torch' in sys.modules)"
    assert run_python("-c", code).returncode == 0
