"""Equal identities for what is the same run, different ones for what is not."""

import pytest

from pixelpart.config import Config, config_from, flat
from pixelpart.runs import RunFolder
from pixelpart.sweeps.identity import burn_in, identity, unused

PART = {"mask": {"rule": "mean"}, "burn_in": {"epochs": 4}, "epochs": 10, "holdout": 0}


def made(base, **changes):
    values = Config().model_dump()
    for settings in (base, changes):
        for name, value in settings.items():
            values[name] = values[name] | value if isinstance(value, dict) else value
    return config_from(values, source="test")


SAME = [
    ({}, {"recipe": "mine"}),
    ({}, {"keep": (3, 5)}),
    ({}, {"eps_low": "3/255"}),
    ({}, {"mask": {"every": 3, "target": "label", "layer": "layer3"}}),
    ({}, {"objective": {"beta": 2.0}}),
    ({}, {"optim": {"warmup": 0.1}}),
    ({}, {"optim": {"decay_at": (60, 90)}}),  # 80 epochs: the second is never reached
    ({"optim": {"schedule": "cyclic"}}, {"optim": {"decay_at": (3,)}}),
    ({"optim": {"schedule": "constant"}}, {"optim": {"decay_at": (3,), "warmup": 0.1}}),
    ({}, {"awp": {"after": 5}}),
    ({}, {"awp": {"gamma": 0.01, "after": 80}}),
    ({}, {"burn_in": {"eps": "3/255", "objective": "trades"}}),  # of no epochs
    ({"holdout": 0}, {"burn_in": {"epochs": 5}}),  # trains as the epochs after it do
    (PART, {"burn_in": {"eps": "8/255", "objective": "at"}}),
    (PART, {"objective": {"beta": 1.0}}),
    ({"dataset": "mine:make"}, {"size": 64, "num_classes": 3}),  # filled in when training starts
    ({"eps": 8 / 255}, {"eps": "8/255"}),
    ({"seed": 3}, {"holdout_seed": 3}),
    ({"holdout": 0}, {"holdout_seed": 3}),
    ({}, {"mask": {"source": "centre", "control": "flat", "mean": "8/255", "mean_over": "batch"}}),
    (PART, {"mask": {"mean_over": "batch"}}),
    (PART | {"mask": {"rule": "mean", "source": "object"}}, {"mask": {"target": "label", "layer": "layer3"}}),
    (PART | {"mask": {"rule": "mean", "source": "quadrant:ul"}}, {"mask": {"target": "label"}}),
    (PART | {"mask": {"rule": "mean", "source": "gradient:2"}}, {"mask": {"layer": "layer3"}}),
]
DIFFERENT = [
    ({}, {"seed": 1}),
    ({}, {"eps": "4/255"}),
    ({}, {"holdout": 0}),
    ({}, {"holdout_seed": 3}),
    ({}, {"eps_from": "4/255"}),
    ({"holdout": 0, "eps_from": "4/255"}, {"burn_in": {"epochs": 5}}),  # from the end of burn-in to that of the run
    (PART, {"mask": {"control": "flat"}}),
    (PART, {"mask": {"target": "label"}}),
    (PART | {"mask": {"rule": "mean", "source": "gradient:2"}}, {"mask": {"target": "label"}}),
    (PART, {"mask": {"mean": "8/255"}}),
    ({}, {"epochs": 70}),
    ({}, {"optim": {"decay_at": (50,)}}),
    ({}, {"mask": {"rule": "mean"}}),
    ({}, {"burn_in": {"epochs": 5}}),  # the best checkpoint is chosen after burn-in
    ({}, {"burn_in": {"epochs": 5, "eps": "4/255"}}),
    ({}, {"awp": {"gamma": 0.01}}),
    ({}, {"eps_ramp": 5}),
    ({}, {"dataset": "folder:a", "size": 64}),
    ({"dataset": "folder:a", "size": 64}, {"dataset": "folder:b"}),
    ({"dataset": "folder:a", "size": 64}, {"size": 32}),
    ({"optim": {"schedule": "cyclic"}}, {"optim": {"warmup": 0.1}}),
    ({"objective": {"name": "trades"}}, {"objective": {"beta": 2.0}}),
    ({"burn_in": {"epochs": 2, "objective": "mart"}}, {"objective": {"beta": 2.0}}),
    (PART, {"eps_low": "3/255"}),
    (PART, {"mask": {"every": 2}}),
    (PART, {"burn_in": {"epochs": 5}}),
    (PART, {"burn_in": {"objective": "trades"}}),
]


@pytest.mark.parametrize(("base", "change"), SAME)
def test_what_decides_nothing_leaves_the_identity(base, change):
    assert identity(made(base, **change)) == identity(made(base))


@pytest.mark.parametrize(("base", "change"), DIFFERENT)
def test_what_decides_the_result_changes_the_identity(base, change):
    assert identity(made(base, **change)) != identity(made(base))


def test_fields_of_masks_are_unused_without_one():
    of_masks = {name for name in flat(Config()) if name.startswith("mask.")} | {"eps_low"}
    assert of_masks <= unused(made({}))
    assert of_masks & unused(made(PART)) == {"mask.mean_over"}  # of no mean


# -- forks


@pytest.fixture
def parent(tmp_path):
    """Writes the config of a run and returns RUN@4."""

    def write(config, name="parent"):
        RunFolder(tmp_path / name).write_config(config)
        return f"{tmp_path / name}@4"

    return write


def test_fork_of_a_plain_run_is_the_run_with_that_burn_in(parent):
    plain = made({"epochs": 10, "eps": "8/255"}, mask={"rule": "none"}, keep=(4,))
    fork = {"epochs": 10, "eps": "7.5/255", "init_from": parent(plain)}
    whole = made(fork, init_from="", burn_in={"epochs": 4, "eps": "8/255"})
    assert identity(made(fork)) == identity(whole)
    assert identity(made(fork, recipe="x")) == identity(whole)
    masked = {"mask": {"rule": "mean"}}
    assert identity(made(fork, **masked)) == identity(made(whole.model_dump(), **masked))
    # with maps that are stored for some epochs, counted from the end of burn-in, only a fork with that burn-in is
    stored = {"mask": {"rule": "mean", "every": 3}}
    assert identity(made(fork, **stored)) != identity(made(whole.model_dump(), **stored))
    at_4 = made(fork, **stored, burn_in={"epochs": 4})
    assert identity(at_4) == identity(made(whole.model_dump(), **stored))


def test_fork_of_another_run_has_its_parents_identity(parent):
    fork = {"epochs": 10, "eps": "7.5/255"}
    lr = made({"epochs": 10, "optim": {"lr": 0.1}})
    ids = {
        identity(made(fork)),
        identity(made(fork, init_from=parent(made({"epochs": 10}), "plain"))),
        identity(made(fork, init_from=parent(lr, "lr"))),
        identity(made(fork, init_from=parent(lr, "lr")[:-1] + "5")),
        identity(made(fork, init_from=parent(made(PART), "part")[:-1] + "6")),  # epoch 6 is behind the burn-in
    }
    assert len(ids) == 5
    assert identity(made(fork, init_from=parent(lr, "other"))) in ids  # where the parent is does not matter


def test_a_run_that_starts_from_weights_is_neither_a_fork_nor_a_run_from_scratch(parent):
    settings = {"epochs": 10, "eps": "7.5/255", "holdout": 0}
    same = parent(made(settings))
    other = parent(made({"epochs": 10, "seed": 1}), "other")
    starts = ["", same, same.removesuffix("@4"), other.removesuffix("@4")]
    assert len({identity(made(settings, init_from=start)) for start in starts}) == 3  # the fork ends as from scratch


def test_parent_is_also_found_next_to_the_run(parent, tmp_path):
    there = parent(made({"epochs": 10}))
    fork = made({"epochs": 10, "eps": "7.5/255", "init_from": there})
    moved = fork.model_copy(update={"init_from": "elsewhere/parent@4"})
    assert identity(moved, folder=tmp_path / "fork") == identity(fork)


# -- burn-ins


@pytest.mark.parametrize(
    ("change", "agree"),
    [
        ({"mask": {"rule": "none"}, "burn_in": {"epochs": 0}}, True),
        ({"mask": {"rule": "soft", "every": 2}, "eps_low": "1/255"}, True),
        ({"burn_in": {"epochs": 6}}, True),
        ({"eps_from": "4/255"}, True),
        ({"eps_from": "4/255", "mask": {"rule": "none"}, "burn_in": {"epochs": 0}}, False),
        ({"eps": "7.5/255", "burn_in": {"eps": "8/255"}}, True),
        ({"objective": {"name": "trades"}, "burn_in": {"objective": "at"}}, True),
        ({"epochs": 20}, True),  # the schedule is step
        ({"awp": {"gamma": 0.1, "after": 4}}, True),
        ({"optim": {"decay_at": (4,)}}, True),
        ({"awp": {"gamma": 0.1, "after": 3}}, False),
        ({"optim": {"decay_at": (3,)}}, False),
        ({"eps": "9/255"}, False),
        ({"seed": 1}, False),
        ({"holdout": 10}, False),
        ({"burn_in": {"epochs": 3}}, False),  # the fourth epoch uses the mask
        ({"ema": 0.9}, False),
    ],
)
def test_burn_ins_agree_in_all_that_decides_their_epochs(change, agree):
    assert (burn_in(made(PART), 4) == burn_in(made(PART, **change), 4)) is agree


def test_length_of_the_run_decides_a_burn_in_if_the_schedule_depends_on_it():
    cyclic = {"optim": {"schedule": "cyclic"}}
    assert burn_in(made(PART, **cyclic), 4) != burn_in(made(PART, epochs=20, **cyclic), 4)
