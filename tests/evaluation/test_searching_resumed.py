"""AutoAttack and its parts, stopped and gone on with."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from pixelpart.cli.main import main
from pixelpart.evaluation import accuracy
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.journal import Journal
from pixelpart.evaluation.searching import under_searches
from searches import CPU, EPS, evaluated, journals, short, stop_after

pytestmark = pytest.mark.usefixtures("short_searches")


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
from pixelpart.cli.main import main
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
    pictures = ImageSet(*labelled, CPU)
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
    flags = under(net, ImageSet(*labelled, CPU), right, Journal())
    assert torch.equal(right, before)
    assert not (flags & ~right).any()
