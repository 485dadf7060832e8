"""A run on disk: checkpoints, the folder with its lock and metrics, and `Run`."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from metrics_rows import metrics_row
from pixelpart import data, models
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.runs import Run, RunFolder, build_model, fill, load_checkpoint, mean_budget, read_facts, save_checkpoint

# -- checkpoints


@pytest.fixture
def tensors():
    return {
        "a": torch.arange(6.0).view(2, 3).t(),  # not contiguous
        "b": torch.tensor(7),
        "c": torch.rand(2, 2, dtype=torch.float64).requires_grad_(),
        "d": torch.rand(1, 3, 2, 2).to(memory_format=torch.channels_last),
    }


FACTS = {
    "config": "abc", "model": "tiny-cnn", "settings": {"seed": 1}, "epoch": 0,
    "position": {
        "step": 3, "epoch": 0, "best_robust_ce": None, "best_epoch": None, "forked_here": False, "images": 9,
    },
}  # fmt: skip


def test_checkpoint_returns_the_saved_tensors_and_facts(tmp_path, tensors):
    save_checkpoint(tmp_path / "x.safetensors", tensors, FACTS)
    loaded, facts = load_checkpoint(tmp_path / "x.safetensors")
    assert facts == FACTS == read_facts(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.detach())
        assert loaded[name].dtype == tensor.dtype


def test_equal_content_gives_equal_bytes_in_any_order(tmp_path, tensors):
    save_checkpoint(tmp_path / "x", tensors, {"a": 1, "b": 2})
    save_checkpoint(tmp_path / "y", dict(reversed(tensors.items())), {"b": 2, "a": 1})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_truncated_checkpoint_is_a_user_error(tmp_path, tensors):
    path = tmp_path / "x.safetensors"
    save_checkpoint(path, tensors, FACTS)
    content = path.read_bytes()
    for length in (0, 8, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"x\.safetensors is truncated or not a pixelpart checkpoint"):
            load_checkpoint(path)


def test_flipped_bit_is_detected_or_changes_nothing(tmp_path, tensors):
    """In the header, the facts and the weights."""
    path = tmp_path / "x.safetensors"
    save_checkpoint(path, tensors, FACTS)
    content, messages = path.read_bytes(), []
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 7]) + content[at + 1 :])
        try:
            loaded, facts = load_checkpoint(path)
        except UserError as error:
            messages.append(str(error))
            continue
        assert facts == FACTS
        assert all(torch.equal(loaded[name], tensor.detach()) for name, tensor in tensors.items())
    assert any("x.safetensors: checksum mismatch: the file is corrupt" in message for message in messages)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (FACTS, "sum: Field required"),
        ({name: value for name, value in FACTS.items() if name != "position"}, "position: Field required"),
        (FACTS | {"epoch": "1"}, "epoch: Input should be a valid integer, not '1'"),
        (FACTS | {"epoch": True}, "epoch: Input should be a valid integer, not True"),
        (FACTS | {"epoch": 10**30}, "epoch: Input should be less than or equal to"),
        (FACTS | {"position": FACTS["position"] | {"step": -1}}, "position.step: Input should be greater than"),
        (FACTS | {"position": [1]}, "position: Input should be"),
        (FACTS | {"settings": None}, "settings: Input should be a valid dictionary"),
        (FACTS | {"more": 1}, "more: no such field"),
        ([FACTS], "Input should be"),
    ],
)
@pytest.mark.parametrize("read", [load_checkpoint, read_facts])
def test_checkpoint_with_other_facts_is_refused_in_one_line(tmp_path, facts, message, read):
    save_file({"a": torch.ones(2)}, tmp_path / "x", metadata={"pixelpart": json.dumps(facts)})
    with pytest.raises(
        UserError, match=rf"x is truncated or not a pixelpart checkpoint \(.*{re.escape(message)}"
    ) as info:
        read(tmp_path / "x")
    assert "\n" not in str(info.value)


def test_deeply_nested_facts_are_refused(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "x", metadata={"pixelpart": "[" * 10**5 + "]" * 10**5})
    with pytest.raises(UserError, match=r"x is truncated or not a pixelpart checkpoint \(nested too deeply\)"):
        read_facts(tmp_path / "x")


def test_pickles_and_other_safetensors_files_are_refused_and_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    torch.save({"a": Evil()}, tmp_path / "pickle.safetensors")
    for name in ("other", "pickle"):
        with pytest.raises(UserError, match="not a pixelpart checkpoint"):
            load_checkpoint(tmp_path / f"{name}.safetensors")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("read", [load_checkpoint, read_facts])
def test_missing_checkpoint_is_a_user_error(tmp_path, read):
    with pytest.raises(UserError, match=f"no checkpoint at {tmp_path / 'none'}"):
        read(tmp_path / "none")


# -- the folder


def test_config_is_written_once_and_another_is_refused_with_the_fields_that_differ(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for _ in range(2):
        folder.check_config(Config(seed=4))
        folder.write_config(Config(seed=4))
    with pytest.raises(UserError, match=r"another config \(seed: 4 != 0; mask.every: 0 != 1\)"):
        folder.check_config(Config(mask={"every": 1}))
    folder.write_config(Config(mask={"every": 1}))
    assert folder.read_config() == Config(seed=4)


def test_a_run_killed_while_it_wrote_its_config_can_start_again(tmp_path):
    for name in (".lock", ".config.json.partial"):
        (tmp_path / name).touch()
    RunFolder(tmp_path).check_config(Config())


def test_folder_that_is_not_a_run_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty and not a run folder"):
        RunFolder(tmp_path).check_config(Config())
    with pytest.raises(UserError, match=r"not a run folder: it has no config\.json"):
        RunFolder(tmp_path).read_config()
    with pytest.raises(UserError, match="nowhere is not a run folder: no such folder"):
        RunFolder(tmp_path / "nowhere").read_config()
    with pytest.raises(UserError, match=r"cannot use .*notes\.txt as a run folder"):
        RunFolder(tmp_path / "notes.txt").locked().__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "at").mkdir()
    (tmp_path / "at/config.json").write_text("{}")
    with pytest.raises(UserError, match=r"it has no config\.json; .*/\* means the runs below it"):
        RunFolder(tmp_path).read_config()


def test_second_lock_is_refused_until_the_first_is_released(tmp_path):
    def work():
        with RunFolder(tmp_path).locked():
            with pytest.raises(UserError, match="another process is working in"):
                RunFolder(tmp_path).locked().__enter__()
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            work()


def test_user_error_inside_the_lock_leaves_no_new_folder(tmp_path):
    with pytest.raises(UserError), RunFolder(tmp_path / "new").locked():
        raise UserError("a mistake")
    assert not (tmp_path / "new").exists()


def test_metrics_are_read_as_written(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    rows = [metrics_row(1, loss=1 / 3, robust_ce=float("inf")), metrics_row(2, phase="mask")]
    folder.write_metrics(rows)
    assert folder.read_metrics() == rows


def test_rows_of_an_older_version_without_checksum_are_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(metrics_row(epoch)) + "\n" for epoch in (1, 2)))
    assert [row["epoch"] for row in RunFolder(tmp_path).read_metrics()] == [1, 2]


def test_rows_of_a_fork_start_after_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config(Config(init_from="runs/at@20"))
    for epochs, message in (((21, 22), None), ((22,), "epochs without a row: 21"), ((20, 21), "before the fork")):
        folder.write_metrics([metrics_row(epoch) for epoch in epochs])
        if message is None:
            assert len(folder.read_metrics()) == 2
        else:
            with pytest.raises(UserError, match=message):
                folder.read_metrics()


WRITTEN = [json.dumps(metrics_row(epoch)) for epoch in (1, 2, 3)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (json.dumps(metrics_row(2, natural=9.07)), r"line 2 is corrupt \(natural: Input should be less than"),
        (json.dumps(metrics_row(2, seconds=-1.0)), r"line 2 is corrupt \(seconds: Input should be greater than"),
        (json.dumps(metrics_row(2, loss=float("nan"))), r"line 2 is corrupt \(loss: Input should be a finite number"),
        (json.dumps(metrics_row(2, pgd=True)), r"line 2 is corrupt \(pgd: Input should be a valid number"),
        (json.dumps(metrics_row(2, pdg=0.5)), r"line 2 is corrupt \(pdg: no such field"),
        (json.dumps(metrics_row(2, sum="00000000")), r"line 2 is corrupt \(checksum mismatch"),
        (json.dumps({"epoch": 2}), r"line 2 is corrupt \(phase: Field required"),
        (WRITTEN[1][:40], r"line 2 is corrupt \("),
        ("\ufffd\udcff", r"line 2 is corrupt \("),
        ("3", r"line 2 is corrupt \(Input should be"),
        ("[" * 10**5, r"line 2 is corrupt \(nested too deeply"),
        (WRITTEN[0], r"line 2 is corrupt \(epoch 1 after epoch 1"),
        (None, "epochs without a row: 2"),
    ],
)
def test_corrupt_metrics_are_reported_and_kept_aside(tmp_path, line, message):
    folder = RunFolder(tmp_path)
    lines = [WRITTEN[0], *([line] if line is not None else []), WRITTEN[2]]
    folder.metrics_file.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    content = folder.metrics_file.read_bytes()
    with pytest.raises(UserError, match=rf"metrics\.jsonl: {message}") as info:
        folder.read_metrics()
    assert "\n" not in str(info.value)
    kept, problems = folder.rewind_metrics(3, epochs=4)
    assert [row["epoch"] for row in kept] == [1, 3]
    assert re.match(rf"metrics\.jsonl: {message}", problems[0])
    aside = tmp_path / "metrics.jsonl.corrupt"
    assert aside.read_bytes() == content if line is not None else not aside.exists()
    assert folder.read_metrics([]) == kept


def test_rows_beyond_the_epochs_of_the_run_are_reported_and_kept_aside(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_metrics([metrics_row(1), metrics_row(2), metrics_row(3)])
    content = folder.metrics_file.read_bytes()
    kept, problems = folder.rewind_metrics(2, epochs=2)
    assert [row["epoch"] for row in kept] == [1, 2]
    assert problems[0] == "metrics.jsonl: line 3 is corrupt (epoch 3 of 2)"
    assert (tmp_path / "metrics.jsonl.corrupt").read_bytes() == content


def test_every_flipped_bit_of_a_row_is_noticed(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_metrics([metrics_row(1, loss=0.123456789)])
    content = folder.metrics_file.read_bytes()
    for at in range(len(content) - 1):
        folder.metrics_file.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 7]) + content[at + 1 :])
        try:
            assert folder.read_metrics() == [metrics_row(1, loss=0.123456789)]  # a flipped blank
        except UserError:
            continue


# -- a run opened for use


def weights(seed, name="tiny-cnn"):
    return models.build(name, generator=torch.Generator().manual_seed(seed)).state_dict()


def same(model, state):
    return all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.fixture
def make(tmp_path):
    """A run on disk whose checkpoints hold weights of known seeds: raw of `seed`, averaged of `seed` + 100."""

    def write(config=None, config_hash=None, **checkpoints):
        folder = RunFolder(tmp_path / "run")
        config = config or Config(model="tiny-cnn")
        folder.write_config(config)
        for name, seed in checkpoints.items():
            tensors = {f"model.{key}": tensor for key, tensor in weights(seed).items()}
            if config.ema:
                tensors |= {f"average.{key}": tensor for key, tensor in weights(seed + 100).items()}
            tensors |= {"tally": torch.zeros(6), "momentum.linear.bias": torch.zeros(10)}
            facts = FACTS | {"epoch": seed, "config": config_hash or config.hash()}
            save_checkpoint(folder.checkpoint(name), tensors, facts)
        return Run(folder.path)

    return write


def test_model_is_the_best_checkpoint_in_eval_mode(make):
    run = make(best=1, last=2)
    assert same(run.model, weights(1))
    assert not any(module.training for module in run.model.modules())
    assert run.config == Config(model="tiny-cnn")
    assert Run(str(run.dir)) == run
    model, facts = run.load("last")
    assert same(model, weights(2))
    assert facts == FACTS | {"epoch": 2, "weights": "raw", "config": run.config.hash()}


def test_run_with_averaged_weights_loads_the_average(make):
    model, facts = make(Config(model="tiny-cnn", ema=0.99), best=1).load()
    assert same(model, weights(101))
    assert facts["weights"] == "averaged"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"last": 2}, r"no checkpoint 'best' in .*run; choose from last"),
        ({}, r"no checkpoint 'best' in .*run; none is saved yet"),
        ({"config": Config(model="wrn-10-1"), "best": 1}, r"best\.safetensors belongs to another model: \d+ tensors"),
        ({"config_hash": "1234", "best": 1}, r"best\.safetensors belongs to another run: its config is 1234, not "),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused(make, settings, message):
    with pytest.raises(UserError, match=message):
        _ = make(**settings).model


def test_fill_copies_in_place_and_refuses_other_shapes_before_it_copies():
    model = models.build("tiny-cnn", num_classes=10)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    addresses = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    other = models.build("tiny-cnn", num_classes=7).state_dict()
    with pytest.raises(UserError, match=r"x belongs to another model: 2 tensors do not fit, the first is linear\."):
        fill(model.state_dict(), other, source=Path("x"))
    for dtype in (torch.complex64, torch.int8):
        with pytest.raises(UserError, match=r"x belongs to another model: 1 tensors do not fit, the first is linear\."):
            fill(model.state_dict(), before | {"linear.bias": torch.ones(10, dtype=dtype)}, source=Path("x"))
    assert same(model, before)
    fill(model.state_dict(), weights(5), source=Path("x"))
    assert same(model, weights(5))
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == addresses


# -- the network of a config


def test_normalisation_is_the_data_sets_and_inside_the_model():
    plain, scaled = (build_model(Config(model="tiny-cnn", normalize=flag)).eval() for flag in (False, True))
    x = torch.rand(2, 3, 32, 32)
    shapes = data.SETS["shapes"]
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (shapes.mean, shapes.std))
    assert torch.allclose(scaled(x), plain((x - mean) / std), atol=1e-5)
    assert not torch.allclose(scaled(x), plain(x), atol=1e-3)


def test_the_mean_budget_leaves_burn_in_out():
    rows = [
        metrics_row(1, phase="burn-in", budget_mean=8 / 255),
        metrics_row(2, phase="mask", budget_mean=7.2 / 255),
        metrics_row(3, phase="mask", budget_mean=7.6 / 255),
    ]
    assert mean_budget(rows) == pytest.approx(7.4)
    assert mean_budget(rows[:1]) is None
