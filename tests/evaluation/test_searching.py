"""AutoAttack and its parts through `evaluate`: stopped and gone on with, told of, written down."""

import contextlib
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from pixelpart.attacks import SEARCHES, VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.autoattack import autoattack
from pixelpart.attacks.fab import fab_search
from pixelpart.attacks.square import square_search
from pixelpart.cli import main
from pixelpart.errors import UserError
from pixelpart.evaluation import accuracy, evaluate, searching
from pixelpart.evaluation.journal import Journal
from pixelpart.evaluation.pictures import Pictures
from pixelpart.evaluation.searching import choose_search, clean_logits, trusted_view, under_searches

EPS = 0.02
CPU = torch.device("cpu")


def short():
    return {
        "apgd-ce": apgd_search(steps=3),
        "apgd-t": apgd_search(steps=3, targets=9),
        "fab-t": fab_search(steps=4),
        "square": square_search(10),
    }


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setitem(VERSIONS, "standard", short())
    for name, search in short().items():
        monkeypatch.setitem(SEARCHES, name, search)


@pytest.fixture
def labelled(net, pair):
    """20 images with the network's own labels, but for two: most of the work is at what is right."""
    x = pair[0][:20]
    y = net(x).argmax(1)
    y[::10] = (y[::10] + 1) % 5
    return x, y


@pytest.fixture
def hunted(monkeypatch):
    """The tries that were handed to the driver, by part, and those that it settled."""
    seen = {"asked": [], "settled": [], "seeds": set()}
    original = searching.hunt

    def noting(name, search, net, judge, take, clean, tries, *, settle, **settings):
        seen["asked"] += [(name, *one) for one in tries]
        seen["seeds"].add(settings["seed"])

        def noted(one, broken):
            seen["settled"].append((name, *one))
            settle(one, broken)

        return original(name, search, net, judge, take, clean, tries, settle=noted, **settings)

    monkeypatch.setattr(searching, "hunt", noting)
    return seen


def stop_after(count):
    """A progress that is stopped as Ctrl-C would at its so many-th news."""
    news = itertools.count(1)

    def progress(*_):
        if next(news) == count:
            raise KeyboardInterrupt

    return progress


def journals(folder):
    return sorted(folder.glob("eval/*.journal"))


def plane_truth(plane, x, y, eps):
    """Images lie far enough from 0 and 1 that only the ball binds."""
    score = plane(x)[:, 0] * torch.where(y == 0, 1, -1)
    return (score > eps * plane.linear.weight.abs().sum()).numpy()


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


def test_a_loss_that_needs_three_classes_says_so(plane, pair):
    with pytest.raises(UserError, match="the loss dlr needs at least 3 classes, not 2"):
        evaluate(plane, data=pair, attacks="apgd-dlr", eps=EPS)


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


# -- stopped, and gone on with


@pytest.mark.parametrize("stop", [2, 30, 60])
def test_what_was_settled_before_ctrl_c_is_not_done_again(net, labelled, hunted, tmp_path, stop):
    whole = evaluate(net, data=labelled, attacks="autoattack", eps=EPS)
    hunted["asked"].clear()
    hunted["settled"].clear()
    settings = {"data": labelled, "attacks": "autoattack", "eps": EPS, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=stop_after(stop))
    settled = set(hunted["settled"])
    assert settled
    assert len(journals(tmp_path)) == 1
    assert not (tmp_path / "eval.json").exists()
    hunted["asked"].clear()
    result = evaluate(net, **settings)
    assert not settled & set(hunted["asked"])
    assert not {one for one in hunted["asked"] if one[0] == "apgd-ce"} & settled
    assert result.flags["autoattack"].tolist() == whole.flags["autoattack"].tolist()
    assert not result["autoattack"].reused
    assert journals(tmp_path) == []


def test_a_part_that_was_done_costs_no_call_of_the_model(net, labelled, tmp_path):
    """Stopped at the news with which the last part begins."""
    calls = []

    class Counted(type(net)):
        def forward(self, x):
            if x.requires_grad:
                calls.append(len(x))
            return super().forward(x)

    model = Counted().eval()
    settings = {"data": labelled, "attacks": "autoattack", "eps": EPS, "out": tmp_path}
    told = []

    def until_square(name, *_):
        told.append(name)
        if name == "autoattack square":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(model, **settings, progress=until_square)
    searched = len(calls)
    evaluate(model, **settings)
    assert searched > 10
    assert len(calls) - searched < 5  # the looks that come before any attack; square needs no gradient


def test_stopped_again_and_again_it_comes_to_the_same_end(net, labelled, tmp_path, monkeypatch):
    """Seven outcomes to a session."""
    whole = evaluate(net, data=labelled, attacks="autoattack", eps=EPS)
    settle, sessions = Journal.settle, []

    def limited(journal, *outcome):
        settle(journal, *outcome)
        sessions[-1] += 1
        if sessions[-1] == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "settle", limited)
    result = None
    while result is None:
        sessions.append(0)
        with contextlib.suppress(KeyboardInterrupt):
            result = evaluate(net, data=labelled, attacks="autoattack", eps=EPS, out=tmp_path)
    assert 7 < len(sessions) < 30
    assert result.flags["autoattack"].tolist() == whole.flags["autoattack"].tolist()


def test_progress_goes_on_from_where_it_was(net, labelled, tmp_path):
    settings = {"data": labelled, "attacks": "apgd-t", "eps": EPS, "out": tmp_path}
    first, second = [], []
    stop = stop_after(20)
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=lambda *news: (first.append(news), stop()))
    result = evaluate(net, **settings, progress=lambda *news: second.append(news))
    _, done, total, share = first[-1]
    assert second[0][2] == total
    assert second[0][1] >= done
    assert second[0][3] == share
    assert second[-1][1:] == (total, total, result["apgd-t"].accuracy)


def test_the_seconds_of_all_sessions_count(net, labelled, tmp_path, monkeypatch):
    class Clock:
        now = 0.0

        def perf_counter(self):
            self.now += 0.5
            return self.now

    from pixelpart.evaluation import journal

    clock = Clock()
    monkeypatch.setattr(journal, "time", clock)
    settings = {"data": labelled, "attacks": "apgd-ce", "eps": EPS, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=stop_after(12))
    first, clock.now = clock.now, 1000.0
    (entry,) = evaluate(net, **settings).entries
    assert first - 1 < entry["seconds"] <= first + (clock.now - 1000)
    assert entry["seconds"] > clock.now - 1000


def test_a_process_that_was_killed_leaves_its_work_to_the_next(run, hunted, capsys):
    """By SIGKILL, through the command line, at the fifth sample that is settled."""
    code = f"""
import os, signal, sys
from pixelpart.attacks import VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.fab import fab_search
from pixelpart.attacks.square import square_search
from pixelpart.cli import main
from pixelpart.evaluation.journal import Journal

VERSIONS["standard"] = {{
    "apgd-ce": apgd_search(steps=3), "apgd-t": apgd_search(steps=3, targets=9),
    "fab-t": fab_search(steps=4), "square": square_search(10),
}}
original, count = Journal.settle, 0
def settle(self, *outcome):
    global count
    original(self, *outcome)
    count += 1
    if count == 5:
        os.kill(os.getpid(), signal.SIGKILL)
Journal.settle = settle
main({evaluated(run)!r})
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr[-2000:]
    (journal,) = journals(run.dir)
    lines = [line.split() for line in journal.read_text().splitlines()[1:]]
    settled = {(list(short())[int(part)], int(sample), int(number)) for part, sample, number, _, _ in lines}
    assert len(settled) == 5
    assert main(evaluated(run)) == 0
    assert not settled & set(hunted["asked"])
    assert hunted["asked"]
    assert journals(run.dir) == []
    (entry,) = json.loads(capsys.readouterr().out)
    whole = evaluate(run.model, data="shapes", attacks="autoattack", images=40, device="cpu")
    assert np.load(run.dir / entry["flags"]).tolist() == whole.flags["autoattack"].tolist()


def evaluated(run, *more, attacks="autoattack"):
    return ["evaluate", str(run.dir), "--attacks", attacks, "--images", "40", "--device", "cpu", "--json", *more]


def test_a_damaged_journal_costs_only_the_work_that_it_held(net, labelled, tmp_path):
    whole = evaluate(net, data=labelled, attacks="autoattack", eps=EPS)
    settings = {"data": labelled, "attacks": "autoattack", "eps": EPS, "out": tmp_path}
    for damage in (lambda content: content[:-9], lambda content: content.replace(b"1", b"2")):
        with pytest.raises(KeyboardInterrupt):
            evaluate(net, **settings, progress=stop_after(35))
        (journal,) = journals(tmp_path)
        journal.write_bytes(damage(journal.read_bytes()))
        result = evaluate(net, **settings)
        assert result.flags["autoattack"].tolist() == whole.flags["autoattack"].tolist()
        (tmp_path / "eval.json").unlink()


@pytest.mark.parametrize("change", [{"eps": EPS / 2}, {"seed": 1}, {"images": 10}])
def test_another_question_does_not_go_on_from_this_ones_journal(net, labelled, hunted, tmp_path, change):
    settings = {"data": labelled, "attacks": "autoattack", "eps": EPS, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=stop_after(35))
    hunted["asked"].clear()
    other = evaluate(net, **settings | change)
    expected = evaluate(net, **settings | change | {"out": None})
    assert other.flags["autoattack"].tolist() == expected.flags["autoattack"].tolist()
    first = [one for one in hunted["asked"] if one[0] == "apgd-ce"]
    assert len(first) == 2 * other["autoattack"].n * 9 // 10  # all that are right, in both
    assert len(journals(tmp_path)) == 1


def test_another_models_journal_is_not_gone_on_from(net, labelled, tmp_path):
    settings = {"data": labelled, "attacks": "apgd-ce", "eps": EPS, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=stop_after(15))
    with torch.no_grad():
        net.linear.bias[0] += 0.3
    here, elsewhere = evaluate(net, **settings), evaluate(net, **settings | {"out": None})
    assert here.flags["apgd-ce"].tolist() == elsewhere.flags["apgd-ce"].tolist()


def test_pgd_goes_on_from_its_journal_too(net, labelled, tmp_path, monkeypatch):
    settings = {"data": labelled, "attacks": "pgd4x3", "eps": EPS, "step_size": 0.01, "batch_size": 5, "out": tmp_path}
    whole = evaluate(net, **settings | {"out": None})
    tried, original = [], accuracy.start_images

    def noting(index, *rest, restart, **more):
        tried.extend((sample, restart) for sample in index.tolist())
        return original(index, *rest, restart=restart, **more)

    monkeypatch.setattr(accuracy, "start_images", noting)
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=stop_after(3))
    before = set(tried)
    assert before
    (journal,) = journals(tmp_path)
    tried.clear()
    result = evaluate(net, **settings)
    assert not before & set(tried)
    assert tried
    assert result.flags["pgd4x3"].tolist() == whole.flags["pgd4x3"].tolist()
    assert not journal.exists()


def test_a_result_that_is_there_is_not_measured_again(net, labelled, hunted, tmp_path):
    settings = {"data": labelled, "attacks": "autoattack", "eps": EPS, "out": tmp_path}
    first = evaluate(net, **settings)
    hunted["asked"].clear()
    second = evaluate(net, **settings, batch_size=3)
    assert second["autoattack"].reused
    assert hunted["asked"] == []
    assert second.entries == first.entries


# -- a journal that others have written to as well


def under(model, pictures, right, journal, tell=lambda *news: None):
    return under_searches(
        model, pictures, short(), right=right, eps=EPS, search="fp32", seed=0, slots=16, journal=journal, tell=tell,
        say=lambda line: None,
    )  # fmt: skip


def test_what_other_processes_have_broken_does_not_change_ones_own_share(net, labelled):
    """Each has its own samples, and knows after a restart what all have settled."""
    pictures = Pictures(*labelled, CPU)
    right = net(labelled[0]).argmax(1) == labelled[1]
    mine = right & (torch.arange(20) % 2 == 0)
    alone, told, journal = under(net, pictures, mine, Journal()), [], Journal()
    for sample in range(1, 20, 2):
        journal.settle(0, sample, 0, True)
    flags = under(net, pictures, mine, journal, tell=lambda *news: told.append(news))
    assert flags.tolist() == alone.tolist()
    assert told[0][3] == int(mine.sum()) / 20
    assert told[-1][3] == int(flags.sum()) / 20


def test_the_flags_handed_in_are_left_as_they_are(net, labelled):
    right = net(labelled[0]).argmax(1) == labelled[1]
    before = right.clone()
    flags = under(net, Pictures(*labelled, CPU), right, Journal())
    assert torch.equal(right, before)
    assert not (flags & ~right).any()


# -- the precision of the search


@pytest.mark.parametrize(("asked", "device", "chosen"), [
    ("auto", "cpu", "fp32"), ("auto", "cuda", "bf16"), ("fp32", "cuda", "fp32"), ("bf16", "cpu", "bf16"),
])  # fmt: skip
def test_auto_is_bf16_on_a_gpu_alone(asked, device, chosen):
    assert choose_search(asked, torch.device(device)) == chosen


def test_bf16_search_finds_what_fp32_confirms(net, labelled):
    wide, narrow = (evaluate(net, data=labelled, attacks="autoattack", eps=EPS, search=s) for s in ("fp32", "bf16"))
    assert narrow.entries[0]["settings"]["search"] == "bf16"
    assert narrow["autoattack"].doubts == wide["autoattack"].doubts
    assert abs(narrow["autoattack"].correct - wide["autoattack"].correct) <= 1


class Branching(nn.Module):
    """Cannot be read."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x) if x.mean() > -1 else self.net(2 * x)


class Widening(nn.Module):
    """In bf16 its second layer is handed fp32."""

    def __init__(self, net):
        super().__init__()
        self.net, self.by = net, nn.Conv2d(4, 4, 1)
        self.place = nn.Parameter(torch.zeros(4, 1, 1))
        with torch.no_grad():
            self.by.weight.copy_(torch.eye(4)[:, :, None, None])
            self.by.bias.zero_()

    def forward(self, x):
        acts = self.by(self.net.conv(x) + self.place)
        return self.net.linear(self.net.bn(acts).relu().flatten(1))


@pytest.mark.parametrize("wrap", [Branching, Widening])
def test_a_model_without_a_bf16_view_is_searched_as_it_is_and_the_entry_says_so(net, labelled, wrap):
    said = []
    model = wrap(net).eval()
    narrow = evaluate(model, data=labelled, attacks="autoattack", eps=EPS, search="bf16", say=said.append)
    plain = evaluate(net, data=labelled, attacks="autoattack", eps=EPS)
    assert narrow.flags["autoattack"].tolist() == plain.flags["autoattack"].tolist()
    assert len(said) == 1
    assert "the model cannot be searched through in bf16" in said[0]
    assert said[0] in narrow["autoattack"].doubts


def test_in_fp32_an_unreadable_model_is_no_cause_for_doubt(net, labelled):
    said = []
    result = evaluate(Branching(net).eval(), data=labelled, attacks="apgd-ce", eps=EPS, search="fp32", say=said.append)
    assert said == []
    assert result["apgd-ce"].doubts == evaluate(net, data=labelled, attacks="apgd-ce", eps=EPS)["apgd-ce"].doubts


def test_a_view_that_says_something_else_than_the_model_is_not_trusted(net, labelled, monkeypatch):
    pictures = Pictures(*labelled, CPU)
    clean = clean_logits(net, pictures, batch_size=7)
    assert torch.allclose(clean, net(labelled[0]), atol=1e-5)
    view, doubt = trusted_view(net, pictures, "fp32", clean)
    assert view is not net
    assert doubt is None
    monkeypatch.setattr(searching, "view_for_search", lambda model, dtype, device: lambda x: -net(x))
    view, doubt = trusted_view(net, pictures, "fp32", clean)
    assert view is net
    assert "used as it is" in doubt


def test_a_view_that_errs_everywhere_breaks_nothing_that_fp32_does_not_confirm(plane, pair, monkeypatch):
    liar = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    monkeypatch.setattr(searching, "trusted_view", lambda *_: (liar, None))
    flags = evaluate(plane, data=pair, attacks="autoattack", eps=EPS, search="bf16").flags["autoattack"]
    assert not (plane_truth(plane, *pair, EPS) & ~flags).any()


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
    from pixelpart.evaluation import guards

    monkeypatch.setattr(guards, "of_scale", lambda *_: [])  # shows the model other images
    with pytest.raises(UserError, match="the model returned NaN or infinite logits"):
        evaluate(Holes(net, labelled[0]).eval(), data=labelled, attacks=attack, eps=EPS, step_size=0.01)


# -- the command line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engine", "theirs"], "unknown engine 'theirs'; choose from own, reference"),
        (["--search", "fp16"], "unknown search 'fp16'; choose from bf16, fp32"),
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
