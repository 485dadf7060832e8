"""The documents keep their word: their commands work, the files and fields they name exist, their links lead somewhere.

Every `sh` and `python` block runs as written, in a folder of its own for each document, but small: `cut_down` replaces
what is behind the commands. Training on `shapes` takes the first few images and the settings of TINY; training on
CIFAR-10, or of a wide network, stops once every name in the config is resolved; nothing is downloaded; evaluation looks
at a few images, and only parses its attacks where no earlier command of the document has made the run. Other commands
than `pixelpart` are not run: make's targets and Python's files have to exist.

A `python` block that begins with `# FILE, new` or `# FILE, in TABLE` is an addition to the package. All additions are
made to a copy of it, and the `sh` block behind each then runs there. One that begins with `# FILE` is a file of the
reader's own: it is put into the folder.
"""

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import pixelpart
from pixelpart import data, masks, models
from pixelpart.cli.arguments import Parser
from pixelpart.cli.flags import add_config_flags
from pixelpart.cli.main import main
from pixelpart.config import Config, config_from
from pixelpart.data.loader import check_holdout
from pixelpart.engine.plan import build_plan
from pixelpart.evaluation import explain, results
from pixelpart.report.pictures import write_picture
from pixelpart.runs import read_facts
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps import grid
from pixelpart.sweeps.work import Job

train_module = importlib.import_module("pixelpart.engine.train")
evaluate_module = importlib.import_module("pixelpart.evaluation.evaluate")
demo_module = importlib.import_module("pixelpart.experiments.demo")

ROOT = Path(__file__).parent.parent
PLACES = ("*.md", "docs/**/*.md", "results/**/*.md", "benchmarks/*.md")
DOCUMENTS = [path for pattern in PLACES for path in sorted(ROOT.glob(pattern))]
each = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))

SOME = 320  # images
TINY = {
    "epochs": 1,
    "holdout": 64,
    "probe": 32,
    "batch_size": 128,
    "burn_in": {"epochs": 0},
    "eps_ramp": 0,
    "attack": {"steps": 1},
}
TINY |= {"auto": ()}
ADDITION = re.compile(r"# (pixelpart/\S+), (new|in [A-Z]+)\n")
OWN_FILE = re.compile(r"# (\w+\.(?:py|toml))\n")
NOT_RUN = {".", "pip", "pre-commit"}  # shell and tools: neither is ours


class Block(NamedTuple):
    language: str
    text: str
    grown: bool  # whether it speaks of the package after an addition


def blocks(document):
    found = []
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(), flags=re.M | re.S):
        addition = language == "python" and ADDITION.match(text) is not None
        follows = bool(found) and found[-1].grown and found[-1].language == "python"
        found.append(Block(language, text, addition or (language == "sh" and follows)))
    return found


def prose(document):
    """A document without its blocks and comments."""
    return re.sub(r"^```.*?^```$|<!--.*?-->", "", document.read_text(), flags=re.M | re.S)


# -- running small


def cut_down(patch):
    """Puts small stand-ins behind `pp.train`, `pp.evaluate` and the data sets, for the command line and for Python."""
    train, evaluate = train_module.train, evaluate_module.evaluate
    some = functools.cache(lambda split: tuple(tensor[:SOME] for tensor in data.shapes.generate(split)))
    sets = {
        "shapes": dataclasses.replace(
            data.SETS["shapes"],
            load=lambda split, *_: some(split),
            masks=lambda split, root: data.shapes.object_masks(split)[: None if split == "test" else SOME],
        ),
        "cifar10": dataclasses.replace(
            data.SETS["cifar10"],
            load=lambda split, *_: (torch.zeros(400, 3, 32, 32, dtype=torch.uint8), torch.arange(400) // 20 % 10),
            get=lambda root, progress: root,
            check=lambda root, progress: "verified",
        ),
    }

    def small(config):
        values = config.model_dump()
        cut = {key: values[key] | value if isinstance(value, dict) else value for key, value in TINY.items()}
        return config_from(values | cut, source="TINY")

    def small_train(config, out, **settings):
        if re.match(r"(?!folder:)\w+:", config.dataset):  # `small` holds out fewer images
            check_holdout(len(data.load(config.dataset, split="train")[1]), config.holdout)
        if config.dataset == "cifar10" or config.model.startswith("wrn"):
            build_plan(config)
            return None
        return train(small(config), out, **settings)

    def small_evaluate(subject, *, attacks, images=None, **settings):
        names = attacks.split(",") if isinstance(attacks, str) else attacks
        assert all(evaluate_module.parse_attack(name) for name in names)
        if isinstance(subject, str) and ":" not in subject and not Path(subject).exists():
            return results.Result({})
        given = isinstance(settings.get("data"), tuple)
        return evaluate(subject, attacks=attacks, images=None if given else 16, **settings)

    for module in (train_module, demo_module):
        patch.setattr(module, "train", small_train)
    for module in (evaluate_module, demo_module):
        patch.setattr(module, "evaluate", small_evaluate)
    # a sweep finds its runs by their configs, so its jobs are made small from the start
    patch.setattr(grid, "Job", lambda config, *request: Job(small(config), *request))
    for name, entry in sets.items():
        patch.setitem(data.SETS, name, entry)


def commands(text):
    """The commands of an `sh` block as words; comments are left out."""
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        while "&&" in words:
            yield words[: words.index("&&")]
            words = words[words.index("&&") + 1 :]
        if words:
            yield words


def run_command(words):
    if words[0] == "pixelpart":
        words, out = (words[: words.index(">")], Path(words[-1])) if ">" in words else (words, None)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert main(words[1:]) == 0, shlex.join(words)
        if out:
            out.write_text(said.getvalue())
    elif words[0] == "torchrun":
        run_command(words[words.index("-m") + 1 :])
    elif words[0] == "make":
        for target in words[1:]:
            assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), flags=re.M), target
    elif "/" in words[0] or words[0] == ".":
        assert words[0] in NOT_RUN or os.access(ROOT / words[0], os.X_OK), words[0]
    elif words[0].startswith("python"):
        assert (ROOT / next(word for word in words if word.endswith(".py"))).exists(), shlex.join(words)
    else:
        assert words[0] in NOT_RUN, f"no rule says how to test {shlex.join(words)!r}"


@each
def test_commands_and_code_work(document, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIXELPART_DATA", str(tmp_path / "data"))
    cut_down(monkeypatch)
    for block in blocks(document):
        if block.grown:
            continue
        if block.language == "sh":
            for words in commands(block.text):
                run_command(words)
        elif own := OWN_FILE.match(block.text):
            (tmp_path / own[1]).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, document.name, "exec"), {})
        else:
            assert block.language == "text", f"a block of {block.language!r} is not tested"


# -- additions


def grow(package, text):
    """Makes the additions of one block to a copy of the package."""
    parts = ADDITION.split(text)[1:]
    for name, how, lines in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        path = package / name
        if how == "new":
            assert not (ROOT / name).exists()
            path.write_text(lines)
        else:
            above, entry = re.split(r'^(?="\w)', lines, maxsplit=1, flags=re.M)
            head = re.compile(rf"^{how.removeprefix('in ')}\b.*= {{", flags=re.M)
            old = path.read_text()
            assert len(head.findall(old)) == 1, f"{name} has no table {how}"
            if above.startswith("from "):
                old, above = old.replace("\nfrom ", f"\n{above}from ", 1), ""
            path.write_text(head.sub(lambda match: f"{above}{match[0]}{entry.strip()} ", old))  # noqa: B023 (used at once)


def own_pictures(folder):
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for split, n in (("train", 400), ("test", 100)):
        images = draw.integers(256, size=(n, 3, 32, 32), dtype=np.uint8)
        np.savez(folder / f"{split}.npz", images=images, labels=draw.integers(2, size=n))


def test_additions_to_the_package_work(tmp_path):
    shutil.copytree(ROOT / "pixelpart", tmp_path / "pixelpart", ignore=shutil.ignore_patterns("__pycache__"))
    own_pictures(tmp_path / "data" / "mine")
    grown = [block for document in DOCUMENTS for block in blocks(document) if block.grown]
    texts = {language: dict.fromkeys(b.text for b in grown if b.language == language) for language in ("python", "sh")}
    assert len(texts["python"]) == len(texts["sh"]) == 10  # attack, map, source, control, rule, ..., experiment
    for text in texts["python"]:
        grow(tmp_path, text)
    code = (
        "import json, sys, pytest, pixelpart, test_docs\n"
        "assert pixelpart.__file__.startswith(sys.argv[1])\n"
        "with pytest.MonkeyPatch.context() as patch:\n"
        "    test_docs.cut_down(patch)\n"
        "    for words in json.loads(sys.argv[2]): test_docs.run_command(words)\n"
    )
    every = json.dumps([words for text in texts["sh"] for words in commands(text)])
    places = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'tests'}", "PIXELPART_DATA": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), every],
        cwd=tmp_path, env=os.environ | places, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = {path.parent.name for path in tmp_path.glob("runs/*/checkpoints")}
    assert made == {"cw", "hirescam", "edge", "mirrored", "half", "alp", "flip", "mine", "plain"}


# -- what is named exists


def test_the_tree_is_there():
    (tree,) = (b.text for b in blocks(ROOT / "README.md") if b.language == "text")
    folder = [""] * 9
    named = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names, about = re.fullmatch(r"\s*(\S+(?:, \S+)*)(?:\s{2,}(.*))?", line).groups()
        for name in names.split(", "):
            folder[depth] = name.removesuffix("/")
            named.append(Path(*folder[:depth], name))
        if name.endswith("/") and name != "tests/":
            named += [Path(*folder[: depth + 1], other) for other in re.findall(r"[\w-]+\.(?:py|md)", about or "")]
    assert [str(path) for path in named if not (ROOT / path).exists()] == []
    rooms = {path.parent.relative_to(ROOT) for path in (ROOT / "pixelpart").glob("*/__init__.py")}
    assert rooms <= set(named)


@each
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        place = document.parent / name if name else document
        assert place.exists(), target
        if anchor:
            headings, api = (re.findall(rf"^{mark} (.*)$", place.read_text(), flags=re.M) for mark in ("#+", ":::"))
            known = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings} | set(api)
            assert anchor in known, target


@each
def test_inline_code_names_what_exists(document):
    parser = Parser("train", None)
    add_config_flags(parser, Config())
    commands = [*(ROOT / "pixelpart/cli").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    source = "".join(path.read_text() for path in commands)
    for code in re.findall(r"`([^`]+)`", prose(document)):
        if path := re.match(r"(?:pixelpart|tests|docs)/[\w./-]+", code):
            assert (ROOT / path[0]).exists(), code
        if name := re.match(r"pp\.([\w.]+)", code):
            functools.reduce(getattr, name[1].split("."), importlib.import_module("pixelpart"))
        for flag in re.findall(r"(?<!\S)--[a-z][\w.-]*", code):
            assert flag in parser._option_string_actions or f'"{flag}"' in source, code


@each
def test_no_path_of_somebodys_machine(document):
    assert not re.search(r"/(?:home|root|tmp|work|Users)/", document.read_text())


def test_pictures_are_small():
    assert all(path.stat().st_size < 200_000 for path in (ROOT / "docs/images").iterdir())


# -- tables of fields


def table(name, heading):
    """The names in the first column of the tables under a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}\n", (ROOT / "docs" / name).read_text(), flags=re.M)[1]
    section = re.split(r"^#", section, flags=re.M)[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.M)
    return {code for row in rows for code in re.findall(r"`([^`]+)`", row)}


def test_fields_of_files_are_the_documented_ones(monkeypatch, tmp_path):
    cut_down(monkeypatch)
    config = config_from(
        {"model": "tiny-cnn", "mask": {"rule": "mean", "every": 1}, "ema": 0.9, "keep": (1,)}, source=""
    )
    run = train_module.train(config, tmp_path / "run", screen=Screen(quiet=True))
    result = evaluate_module.evaluate(run, attacks=["natural", "pgd2"])
    pixelpart.check(run, surrogate=models.build("tiny-cnn"), images=40)
    pixelpart.corruptions(run, names=["fog"], severities=[1], images=2)
    explained = json.loads(explain.explain(run, n=3, objects=16).read_text())
    write_picture(run)
    assert table("reference.md", "metrics.jsonl") == set(run.metrics[0])
    assert table("reference.md", "eval.json") == set(result.entries[1])
    assert table("reference.md", "explain.json") == set(explained)
    assert table("reference.md", "checkpoints") == set(read_facts(run.folder.checkpoint("last")))
    files = {code.rstrip("/").replace("-N", "-1") for code in table("reference.md", "A run folder")}
    there = {str(path.relative_to(run.dir)) for path in run.dir.rglob("*")} - {"checkpoints"}
    assert {path for path in there if not path.startswith("eval/")} == files


def test_rules_augmentations_attacks_maps_and_networks_are_the_documented_ones():
    for heading, names in (("Rules", {"none", *masks.RULES}), ("Controls", masks.CONTROLS), ("Sources", masks.SOURCES)):
        assert {name.partition(":")[0] for name in table("method.md", heading)} == set(names)
    assert table("training.md", "Augmentation") == set(data.augment.AUGMENTS)
    assert table("method.md", "Maps") == set(masks.ROLLOUTS)
    assert table("reference.md", "Networks") == set(models.MODELS)
    for attack in table("reference.md", "Attacks"):
        evaluate_module.parse_attack(attack.replace("K", "20").replace("R", "5"))
