"""A run on disk: checkpoints, the folder with its lock and metrics, and `Run`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pixelpart import data, models
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.runs import Run, RunFolder, build_model, fill, load_checkpoint, read_facts, save_checkpoint

# -- checkpoints


@pytest.fixture
def tensors():
    return {
        "a": torch.arange(6.0).view(2, 3).t(),  # not contiguous
        "b": torch.tensor(7),
        "c": torch.rand(2, 2, dtype=torch.float64).requires_grad_(),
        "d": torch.rand(1, 3, 2, 2).to(memory_format=torch.channels_last),
    }


FACTS = {"config": "abc", "position": {"step": 3, "best_robust_ce": None}}


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
    """In the header, the facts and the weights; a flip in the name `sum` itself only hides the checksum."""
    path = tmp_path / "x.safetensors"
    save_checkpoint(path, tensors, FACTS)
    content, undetected, messages = path.read_bytes(), 0, []
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 7]) + content[at + 1 :])
        try:
            loaded, facts = load_checkpoint(path)
        except UserError as error:
            messages.append(str(error))
            continue
        undetected += 1
        assert facts.items() >= FACTS.items()
        assert all(torch.equal(loaded[name], tensor.detach()) for name, tensor in tensors.items())
    assert undetected <= 1
    assert any("x.safetensors: checksum mismatch: the file is corrupt" in message for message in messages)


def test_checkpoint_of_an_older_version_without_checksum_is_read(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "x", metadata={"pixelpart": '{"epoch": 1}'})
    assert load_checkpoint(tmp_path / "x")[1] == {"epoch": 1}


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


def test_metrics_are_read_as_written_and_lines_that_are_not_rows_are_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    rows = [{"epoch": 1, "loss": 0.1}, {"epoch": 2, "loss": 1 / 3}]
    folder.write_metrics(rows)
    with open(folder.metrics_file, "ab") as file:
        file.write(b'\xff\xfe\n3\n{"loss": 2}\n{"epoch": 3, "lo')
    assert folder.read_metrics() == rows


def test_importing_runs_does_not_import_torch():
    code = "import sys, pixelpart.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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
            save_checkpoint(folder.checkpoint(name), tensors, {"epoch": seed, "config": config_hash or config.hash()})
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
    assert facts == {"epoch": 2, "weights": "raw", "config": run.config.hash()}


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
