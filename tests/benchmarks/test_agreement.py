"""benchmarks/agreement.py: its claim and counts, and defences that hide gradients but hardly change images."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[2] / "benchmarks" / "agreement.py"
RUNS = [("own", 0), ("own", 1), ("reference", 0), ("reference", 1)]


@pytest.fixture(scope="module")
def agreement():
    spec = importlib.util.spec_from_file_location("agreement", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def done(*chunks):
    """Chunks of 1000 images; for each run the number of images, the first ones, that remain correct."""
    found = {}
    for number, counts in enumerate(chunks):
        for run, count in zip(RUNS, counts, strict=False):
            right = [i < count for i in range(1000)]
            found["AT", run, 1000 * number] = {
                "natural": [True] * 1000,
                "right": right,
                "warnings": [],
                "cpu_seconds": 2,
            }
    return found


@pytest.mark.parametrize(
    ("counts", "holds", "by_seed"),
    [
        ((300, 300, 300, 300), True, [True, True]),
        ((301, 301, 300, 300), True, [True, True]),
        ((302, 302, 300, 300), False, [False, False]),
        ((304, 298, 300, 300), True, [False, True]),
        ((304, 304, 302, 300), True, [False, False]),  # means differ by 3, spread of 2
        ((305, 304, 302, 300), False, [False, False]),
        ((303, 300, 300, 302), True, [True, True]),
    ],
)
def test_the_claim_allows_a_tenth_of_a_point_above_the_reference_and_its_spread(agreement, counts, holds, by_seed):
    row = agreement.compare(done(counts), RUNS, "AT")
    ours, theirs = counts[:2], counts[2:]
    assert (row["holds"], row["holds by seed"]) == (holds, by_seed)
    assert (row["own"], row["reference"]) == ([n / 1000 for n in ours], [n / 1000 for n in theirs])
    assert row["robust under ours only"] == [[max(0, own - other) for other in theirs] for own in ours]
    assert row["robust under the reference only"] == [[max(0, other - own) for other in theirs] for own in ours]
    line = agreement.table({"AT": row}).splitlines()[1]
    assert "FAILS in the mean" in line if not holds else "holds in the mean" in line
    assert line.endswith(f"for {sum(by_seed)} of {len(by_seed)} seeds")


def test_the_table_of_kept_files_is_that_of_the_run(agreement, tmp_path, capsys, monkeypatch):
    row = agreement.compare(done((302, 301, 300, 300)), RUNS, "AT")
    (tmp_path / "kept.json").write_text(json.dumps({"cases": {"AT": row}}))
    monkeypatch.setattr(sys, "argv", ["agreement.py", "--from", str(tmp_path / "kept.json")])
    agreement.main()
    table = capsys.readouterr().out
    assert table == agreement.table({"AT": row}) + "\n"
    line = " ".join(table.splitlines()[1].split())
    assert "30.20% 30.10% 30.00% 30.00% 2, 2; 1, 1 0, 0; 0, 0 +0.15 [" in line


def test_a_chunk_counts_when_all_runs_have_finished_it(agreement):
    row = agreement.compare(done((300, 310, 300, 300), (100, 100, 100)), RUNS, "AT")
    assert (row["n"], row["own"], row["chunks"]) == (1000, [0.3, 0.31], [0])
    assert agreement.compare(done((300, 300)), RUNS, "AT") == {"n": 0}


def test_defences_change_images_little_and_gradients_a_lot(agreement):
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for front, near in ((agreement.quantised, 1 / 30), (agreement.shattered, 2 / 255)):
        y = front(x)
        assert (y - x).abs().max() <= near + 1e-6
        (grad,) = torch.autograd.grad(y.sum(), x)
        wrong = grad <= 0  # that of x itself is 1
        assert 0.4 < wrong.float().mean() <= 1
    assert torch.equal(agreement.straight(x), agreement.quantised(x).detach() - x.detach() + x)
    (grad,) = torch.autograd.grad(agreement.straight(x).sum(), x)
    assert (grad == 1).all()
