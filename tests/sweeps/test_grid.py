"""The file of a sweep: what its parts mean, and one line for each mistake."""

import pytest

from pixelpart import recipes
from pixelpart.errors import UserError
from pixelpart.sweeps.grid import read_grid


@pytest.fixture
def grid(tmp_path):
    def read(text):
        (tmp_path / "grid.toml").write_text(text)
        return read_grid(tmp_path / "grid.toml")

    return read


def test_the_form_of_a_sweep(grid):
    read = grid("""
        base = "cifar10-part-fast"
        attacks = "natural,pgd20,apgd"
        checkpoint = "last"
        images = 100
        threads = 2
        [set]
        epochs = 30
        "burn_in.epochs" = 8
        optim.decay_at = "10,20"
        [grid]
        seed = [100, 101]
        eps-low = ["6/255", "7/255"]
        [slurm]
        timeout_min = 60
    """)
    expected = [
        recipes.cifar10_fast(
            "part", seed=seed, eps_low=low, epochs=30, burn_in={"epochs": 8}, optim={"decay_at": (10, 20)}
        )
        for seed in (100, 101)
        for low in ("6/255", "7/255")
    ]
    assert [job.config for job in read.jobs] == expected
    job = read.jobs[0]
    assert (job.attacks, job.checkpoint, job.images) == (("natural", "pgd20", "apgd"), "last", 100)
    assert (read.threads, read.slurm) == (2, {"timeout_min": 60})


def test_zipped_lists_go_together_and_combine_with_the_grid(grid):
    read = grid("""
        base = "shapes-part"
        [grid.mask]
        rule = ["mean", "soft"]
        [zip]
        eps = ["8/255", "10/255"]
        eps_low = ["7/255", "9/255"]
    """)
    found = [(round(job.config.eps * 255), round(job.config.eps_low * 255), job.config.mask.rule) for job in read.jobs]
    assert found == [(8, 7, "mean"), (8, 7, "soft"), (10, 9, "mean"), (10, 9, "soft")]


def test_base_may_be_a_file(grid, tmp_path):
    (tmp_path / "mine.toml").write_text(recipes.shapes("at", epochs=5).to_toml())
    (job,) = grid(f'base = "{tmp_path / "mine.toml"}"').jobs
    assert job.config == recipes.shapes("at", epochs=5)


BASE = 'base = "shapes-part"\n'
WRONG = {
    "base = ": "Invalid value",
    "": "base: Field required",
    'base = "nope"': "unknown recipe 'nope'; `pixelpart train` lists all",
    'base = "no.toml"': "cannot read config no.toml",
    BASE + "bases = 3": "bases: no such field; did you mean base?",
    BASE + "zzz = 3": "zzz: no such field; choose from base, attacks, ",
    BASE + "[grid]\neps = [8]": "eps=8: eps: 8 is out of range: choose a number from 0 to 1; 8 of 255 levels is 8/255",
    BASE + 'attacks = "pgd"': "unknown attack 'pgd'; did you mean pgd20? choose from ",
    BASE + 'checkpoint = "first"': "checkpoint: ",
    BASE + 'split = "train"': "split: Input should be 'test' or 'held-out', not 'train'",
    BASE + "threads = 0": "threads: Input should be greater than or equal to 1, not 0",
    BASE + "[set]\nepoch = 3": "unknown field in [set] 'epoch'; did you mean epochs",
    BASE + "[grid]\nmask.rules = ['mean']": "unknown field in [grid] 'mask.rules'",
    BASE + "[grid]\nseed = []": "[grid] seed needs a list of values, not []",
    BASE + "[grid]\nseed = 3": "[grid] seed needs a list of values, not 3",
    BASE + "[zip]\nseed = [1, 2]\neps = [0.1]": "[zip] needs lists of one length: seed has 2, eps has 1",
    BASE + "[set]\nseed = 1\n[grid]\nseed = [1]": "seed: given twice, in [set], [grid] or [zip]",
    BASE + "[grid]\nseed = [1, 1]": "two combinations are the same run: seed=1 and seed=1",
    BASE
    + "[grid]\n'mask.rule' = ['none']\neps_low = [0.01, 0.02]": "two combinations are the same run: mask.rule=none",
    BASE + "[grid]\neps = ['9/255', 'x']": "eps=x: eps: 'x' is not a number or a fraction",
    BASE + "[set]\ninit_from = 'nowhere@3'": "nowhere is not a run folder: no such folder",
}


@pytest.mark.parametrize("text", WRONG)
def test_mistake_is_one_line_that_names_the_file(grid, tmp_path, text):
    with pytest.raises(UserError) as caught:
        grid(text)
    message = str(caught.value)
    assert WRONG[text] in message
    assert "grid.toml" in message
    assert "\n" not in message
