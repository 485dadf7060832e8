"""AutoAttack and its parts through `evaluate`: what stands, what is told of it, what is written down."""

import json
import os

import pytest
import torch
from torch import nn

from pixelpart.attacks import VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.autoattack import autoattack
from pixelpart.cli.main import main
from pixelpart.errors import UserError
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.evaluate import evaluate
from searches import EPS, evaluated, journals, plane_truth, short

pytestmark = pytest.mark.usefixtures("short_searches")


# -- outcomes


@pytest.mark.parametrize("name", ["autoattack", "apgd-ce", "apgd-t", "fab-t", "mm3"])
def test_of_a_plane_what_stands_is_known_beforehand(plane, pair, name):
    result = evaluate(plane, data=pair, attacks=[name], eps=EPS)
    expected = plane_truth(plane, *pair, EPS)
    assert result.flags[name].tolist() == expected.tolist()
    assert 0 < expected.sum() < 40


def test_evaluate_and_the_attack_itself_break_the_same_samples(net, labelled):
    x, y = labelled
    generator = torch.Generator().manual_seed(0)
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(0)))
    result = evaluate(net, data=labelled, attacks="autoattack", eps=EPS, seed=seed)
    assert result.flags["autoattack"].tolist() == autoattack(net, x, y, EPS, generator=generator).tolist()
    assert 0 < result["autoattack"].correct < 18


def test_no_part_breaks_what_the_whole_leaves(net, labelled):
    result = evaluate(net, data=labelled, attacks="autoattack,apgd-ce,square,natural", eps=EPS)
    whole = result.flags["autoattack"]
    assert not (whole & ~result.flags["apgd-ce"]).any()  # the first part starts from the same samples and draws
    assert not (whole & ~result.flags["natural"]).any()


@pytest.mark.parametrize("batch_size", [7, 100])
def test_outcomes_do_not_depend_on_the_batch_size(net, labelled, batch_size):
    default = evaluate(net, data=labelled, attacks="autoattack", eps=EPS)
    other = evaluate(net, data=labelled, attacks="autoattack", eps=EPS, batch_size=batch_size)
    assert other.flags["autoattack"].tolist() == default.flags["autoattack"].tolist()


def test_the_entry_says_what_was_done(net, labelled, hunted):
    (entry,) = evaluate(net, data=labelled, attacks="autoattack", eps=EPS, seed=3).entries
    assert hunted["seeds"] == {3}
    assert entry["settings"] == {
        "engine": "own",
        "search": "fp32",
        "parts": {
            "apgd-ce": {"steps": 4, "targets": 0, "restarts": 1},
            "apgd-t": {"steps": 4, "targets": 9, "restarts": 1},
            "fab-t": {"steps": 4, "targets": 9, "restarts": 1},
            "square": {"steps": 11, "targets": 0, "restarts": 1},
        },
    }
    assert (entry["eps"], entry["seed"], entry["precision"], entry["n"]) == (EPS, 3, "fp32", 20)
    (part,) = evaluate(net, data=labelled, attacks="apgd-t", eps=EPS).entries
    assert list(part["settings"]["parts"]) == ["apgd-t"]


def test_a_search_that_needs_three_classes_says_so_before_any_is_run(plane, pair):
    told = []
    with pytest.raises(UserError, match="apgd-dlr needs at least 3 classes, not 2"):
        evaluate(plane, data=pair, attacks="natural,apgd-dlr", eps=EPS, progress=lambda *news: told.append(news))
    assert told == []


def test_plus_goes_without_what_two_classes_do_not_have(plane, pair, monkeypatch):
    parts = {"apgd-ce": apgd_search(steps=3), "apgd-dlr": apgd_search(loss="dlr", steps=3)}
    monkeypatch.setitem(VERSIONS, "plus", parts)
    said = []
    result = evaluate(plane, data=pair, attacks="autoattack-plus", eps=EPS, say=said.append)
    assert result.flags["autoattack-plus"].tolist() == plane_truth(plane, *pair, EPS).tolist()
    assert list(result["autoattack-plus"].entry["settings"]["parts"]) == ["apgd-ce"]
    assert said == ["autoattack-plus without apgd-dlr, which needs 3 classes: there are 2"]
    assert autoattack(plane, *pair, EPS, version="plus").tolist() == result.flags["autoattack-plus"].tolist()


def test_nothing_is_attacked_where_nothing_is_right(net, pair, hunted):
    x, _ = pair
    wrong = (net(x).argmax(1) + 1) % 5
    told = []
    result = evaluate(net, data=(x, wrong), attacks="autoattack", progress=lambda *news: told.append(news))
    assert result["autoattack"].correct == 0
    assert hunted["asked"] == []
    assert told[-1] == ("autoattack square", 0, 0, 0.0)


# -- progress


def test_every_part_is_told_to_its_end_with_the_share_that_stands(net, labelled, monkeypatch):
    told = []
    result = evaluate(net, data=labelled, attacks="autoattack", eps=EPS, progress=lambda *news: told.append(news))
    left = None
    for number, part in enumerate(short()):
        news = [item[1:] for item in told if item[0] == f"autoattack {part}"]
        totals = {total for _, total, _ in news}
        assert len(totals) == 1
        done = [count for count, _, _ in news]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, totals.pop())
        shares = [share for _, _, share in news]
        assert shares == sorted(shares, reverse=True)
        assert left is None or shares[0] == left
        left = shares[-1]
        # what stands after the parts so far, measured by themselves
        monkeypatch.setitem(VERSIONS, "standard", dict(list(short().items())[: number + 1]))
        assert left == evaluate(net, data=labelled, attacks="autoattack", eps=EPS)["autoattack"].accuracy
    assert left == result["autoattack"].accuracy
    assert told[-1][0] == "autoattack square"


def test_a_search_of_its_own_goes_by_its_own_name(net, labelled):
    told = []
    result = evaluate(net, data=labelled, attacks="fab-t", eps=EPS, progress=lambda *news: told.append(news))
    assert {name for name, *_ in told} == {"fab-t"}
    assert told[-1][3] == result["fab-t"].accuracy


# -- models that fail on the way


class Holes(nn.Module):
    """NaN at every image that it has not been shown: all is well until an attack moves one."""

    def __init__(self, net, known):
        super().__init__()
        self.net, self.known = net, known

    def forward(self, x):
        new = ~(x.detach().flatten(1)[:, None] == self.known.flatten(1)).all(2).any(1)
        return self.net(x) + torch.where(new, torch.nan, 0.0)[:, None]


@pytest.mark.parametrize("attack", ["autoattack", "apgd-ce", "apgd-t", "square", "mm3", "pgd3"])
def test_nan_in_the_middle_of_an_attack_is_an_error(net, labelled, attack, monkeypatch):
    """Not a sample that stands: it could not be attacked."""
    from pixelpart import defaults

    monkeypatch.setattr(defaults, "EPS", 0.0)  # noise of the probes, and other scales, are other images too
    monkeypatch.setattr(sanity, "scale_warnings", lambda *_: [])
    with pytest.raises(UserError, match="the model returned NaN or infinite logits"):
        evaluate(Holes(net, labelled[0]).eval(), data=labelled, attacks=attack, eps=EPS, step_size=0.01)


# -- the command line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engine", "theirs"], "unknown engine 'theirs'; choose from own, reference"),
        (["--search", "fp16"], "unknown search 'fp16'; choose from auto, bf16, fp32"),
        (["--attacks", "natural,apgd-ce", "--engine", "reference"], "not apgd-ce"),
        (["--attacks", "autoatack"], "unknown attack 'autoatack'; choose from natural, "),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_done(run, capsys, flags, said):
    assert main([*evaluated(run, attacks="natural"), *flags]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert not (run.dir / "eval.json").exists()
    assert journals(run.dir) == []


def test_through_the_command_line(run, capsys, hunted):
    assert main(evaluated(run, "--quiet", attacks="natural,autoattack,fab-t")) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["attack"] for entry in entries] == ["natural", "autoattack", "fab-t"]
    assert entries[1]["correct"] <= entries[0]["correct"]
    assert json.loads((run.dir / "eval.json").read_text())["entries"] == entries
    assert {name for name, *_ in hunted["asked"]} >= {"apgd-ce"}
    assert os.listdir(run.dir / "eval")
    assert journals(run.dir) == []
