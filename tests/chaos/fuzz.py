"""Strings for every parser of what users write and files hold: each is parsed or refused in one line, quickly."""

import argparse
import contextlib
import io
import json
import os
import time

from checkpoints import facts_of
from children import Tally
from damage import GRID
from metrics_rows import metrics_row
from pixelpart import masks, models
from pixelpart.cli.arguments import HelpShown, Parser, image_size, number_or_fraction, positive_int, positive_ints
from pixelpart.cli.flags import add_config_flags, apply_config_flags
from pixelpart.cli.train import read_start
from pixelpart.config import Config, check_colour, parse_fraction, parse_size, read_config, split_data_label
from pixelpart.data import find
from pixelpart.errors import UserError, choose
from pixelpart.evaluation.attack_spec import parse_attack
from pixelpart.files import parse_json, parse_toml
from pixelpart.runs.records import CheckpointFacts, read_record, read_row, write_row
from pixelpart.runtime.device import choose_device
from pixelpart.runtime.usercode import parse_name
from pixelpart.runtime.world import joined
from pixelpart.sweeps.grid import read_grid

SLOW = 2.0  # seconds for one string
ODD = ("", " ", "\0", "\n", "²", "٣", "１", "−", "é", "\u202e", "\ud800", "%s", "{0}", "$(x)", "nan", "inf", "1e999")
ODD += ("-0", "9" * 5000, "[" * 3000, "{" * 3000, "0x10", "1_000", "00", "@", "::", "True", "null", "'", '"', "#", "=")
FLAGS = [
    "--eps 8/255", "--eps-low=6/255", "--mask.rule quantile:0.7", "--mask.every 2", "--optim.decay-at 60,70",
    "--optim.lr 0.1", "--burn-in.eps same", "--normalize", "--holdout-seed 3", "--data folder:x --size 64x96",
    "--background #808080", "--channels 1", "--epochs 4 --seed 1", "--keep 1,2", "--init-from runs/a@8",
]  # fmt: skip


def mutated(examples, rng):
    """A valid string with a few changes."""
    text = rng.choice(examples)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 8))):
        a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        other = rng.choice(examples)
        inserted = (
            "", chr(rng.randrange(32, 127)), chr(rng.randrange(256)), chr(rng.randrange(0x110000)), rng.choice(ODD),
            other[rng.randrange(len(other) + 1) :], text[a:b] * rng.choice((2, 50)),
            str(rng.choice((0, 1, -1, 255, 2**31, 2**64, 1e400, 0.5))),
        )  # fmt: skip
        text = (text[:a] + rng.choice(inserted) + text[rng.choice((a, b)) :])[:20_000]
    return text


def fuzzes(rng, folder, each=100_000):
    """A tally per parser, with `each` strings."""
    with contextlib.chdir(folder):
        for name, (parse, examples, errors) in parsers(folder).items():
            tally = Tally(f"fuzz: {name}")
            for _ in range(each):
                tally.add(problem(parse, mutated(examples, rng), errors))
            yield tally


def problem(parse, text, errors):
    """What is wrong with how the text is parsed; the errors that are given have to be of one line."""
    begun = time.monotonic()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(HelpShown):
            parse(text)
    except errors as error:
        if len(str(error).splitlines()) > 1:
            return f"{text[:200]!r}: several lines: {str(error)[:200]!r}"
    except BaseException as error:
        return f"{text[:200]!r}: {type(error).__name__}: {str(error)[:200]}"
    seconds = time.monotonic() - begun
    return f"{text[:200]!r} takes {seconds:.0f} s" if seconds > SLOW else ""


def parsers(folder):
    """Each parser, examples of what it accepts, and the errors that it may raise. A UserError is a ValueError."""
    start, flags = Config(), Parser("train", None)
    add_config_flags(flags, start)
    toml, as_json, row = start.to_toml(), start.to_json(), write_row(metrics_row(1))
    user, value, option = UserError, ValueError, (argparse.ArgumentTypeError, ValueError)

    def from_file(suffix, read):
        def parse(text):
            path = folder / f"text{suffix}"
            path.unlink(missing_ok=True)  # faster than to write into the old file
            path.write_bytes(text.encode(errors="surrogatepass"))
            read(path)

        return parse

    return {
        "budget": (parse_fraction, ["8/255", "7.5/255", "0.03", "1e-3", "1"], value),
        "option of a budget": (number_or_fraction, ["8/255", "-1/255"], option),
        "size": (parse_size, ["64", "64x96", "0", "1024"], value),
        "option of a size": (image_size, ["64", "64x96"], option),
        "options of counts": (lambda text: (positive_int(text), positive_ints(text)), ["1", "20", "1,2"], option),
        "colour": (check_colour, ["white", "#808080", "black"], value),
        "data label": (split_data_label, ["folder:P@64x96+grey+on-#808080+skip-bad", "shapes", "tinyimagenet"], user),
        "data set": (data_set, ["shapes", "cifar10", "folder:x", "a.b:c"], user),
        "attack": (parse_attack, ["pgd20", "pgd20x5@16/255", "apgd-l2@0.5", "autoattack", "adaptive-pgd20"], user),
        "mask rule": (lambda text: masks.parse_rule(text, eps=0.1, eps_low=0.05), ["quantile:0.7", "power:-2"], user),
        "mask source": (masks.parse_source, ["gradcam", "gradient:1.5", "quadrant:ul"], user),
        "mask control": (lambda text: choose(masks.CONTROLS, text, "control"), list(masks.CONTROLS), user),
        "model": (lambda text: models._builder(text, 32), ["wrn-34-10", "tiny-cnn", "vit-small"], user),
        "module:function": (parse_name, ["a.b:c", "mymodels:robust"], user),
        "RUN@EPOCH": (lambda text: start.model_copy(update={"init_from": text}).fork_source, ["runs/part@20"], user),
        "recipe": (lambda text: read_start(text.replace("/", "")), ["shapes-part", "cifar10-at-fast"], (user, OSError)),
        "device": (choose_device, ["cpu", "cuda:1", "meta"], user),
        "variables of torchrun": (torchrun, ["0 2 localhost 29500", "1 1"], user),
        "flags of a config": (lambda text: apply_config_flags(start, flags.parse_all(text.split(" "))), FLAGS, user),
        "config in TOML": (from_file(".toml", read_config), [toml], user),
        "config in JSON": (from_file(".json", read_config), [as_json, '{"eps": 0.1}', '{"mask": {"cam": "x"}}'], user),
        "grid of a sweep": (from_file(".toml", read_grid), [GRID], user),
        "row of metrics": (read_row, [row], value),
        "facts of a checkpoint": (
            lambda text: read_record(CheckpointFacts, text),
            [json.dumps(facts_of(start) | {"sum": "0"})],
            value,
        ),
        "JSON": (parse_json, [as_json], value),
        "TOML": (parse_toml, [toml], value),
    }


def data_set(text):
    find(text.translate(dict.fromkeys(map(ord, "/~."))), size=32)  # no folder but the empty one that this runs in


def torchrun(text):
    """The variables that torchrun sets, in a process alone."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    values = dict(zip(names, text.replace("\0", "").encode(errors="ignore").decode().split(" "), strict=False))
    if values.get("MASTER_PORT", "").isdecimal():
        del values["MASTER_PORT"]  # or it would wait for other processes
    try:
        os.environ.update(values)
        with joined():
            pass
    finally:
        for name in names:
            os.environ.pop(name, None)
