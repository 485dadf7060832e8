"""A run opened from its folder: which weights its model has, and what is refused."""

from pathlib import Path

import pytest
import torch

from pixelpart import data, models
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.runs import Run, RunFolder, build_model, fill, save_checkpoint


def weights(seed, name="tiny-cnn"):
    return models.build(name, generator=torch.Generator().manual_seed(seed)).state_dict()


def prefixed(prefix, state):
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


@pytest.fixture
def make(tmp_path):
    """A run on disk whose checkpoints hold weights from known seeds: raw from `seed`, averaged from `seed` + 100."""

    def write(config=None, of=None, **checkpoints):
        folder = RunFolder(tmp_path / "run")
        config = config or Config(model="tiny-cnn")
        folder.claim(config)
        for name, seed in checkpoints.items():
            tensors = prefixed("model.", weights(seed))
            if config.ema:
                tensors |= prefixed("average.", weights(seed + 100))
            tensors |= {"tally": torch.zeros(6), "momentum.linear.bias": torch.zeros(10)}
            save_checkpoint(folder.checkpoint(name), tensors, {"epoch": seed, "config": of or config.hash()})
        return Run(folder.path)

    return write


def same(model, state):
    return all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_the_model_is_the_best_checkpoint_in_eval_mode(make):
    run = make(best=1, last=2)
    assert same(run.model, weights(1))
    assert not any(module.training for module in run.model.modules())
    assert run.config == Config(model="tiny-cnn")


def test_the_folder_may_be_named_by_a_string(make):
    run = make(best=1)
    named = Run(str(run.dir))
    assert named == run
    assert (named.dir / "config.json").exists()


def test_any_checkpoint_can_be_asked_for_with_its_facts(make):
    run = make(best=1, last=2)
    model, facts = run.load("last")
    assert same(model, weights(2))
    assert facts == {"epoch": 2, "weights": "raw", "config": run.config.hash()}


def test_a_run_that_averages_is_judged_by_its_average(make):
    run = make(Config(model="tiny-cnn", ema=0.99), best=1)
    model, facts = run.load()
    assert same(model, weights(101))
    assert facts["weights"] == "averaged"


def test_a_checkpoint_that_is_not_there_is_named_beside_those_that_are(make):
    run = make(best=1, last=2)
    with pytest.raises(UserError, match=r"no checkpoint 'epoch-9' in .*run; there are: best, last"):
        run.load("epoch-9")


def test_a_run_that_has_not_saved_yet_says_so(make):
    with pytest.raises(UserError, match=r"no checkpoint 'best' in .*run; there are: none yet"):
        make().load()


def test_a_checkpoint_of_another_model_is_refused(make):
    run = make(Config(model="wrn-10-1"), best=1)
    with pytest.raises(UserError, match=r"best\.safetensors belongs to another model: \d+ tensors do not fit"):
        _ = run.model


def test_a_checkpoint_of_another_run_of_the_same_model_is_refused(make):
    with pytest.raises(UserError, match=r"best\.safetensors belongs to another run: its config is 1234, not "):
        _ = make(of="1234", best=1).model


def test_a_checkpoint_with_another_number_of_classes_is_refused():
    model = models.build("tiny-cnn", num_classes=10)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other = models.build("tiny-cnn", num_classes=7).state_dict()
    with pytest.raises(UserError, match=r"x belongs to another model: 2 tensors do not fit, the first is linear\."):
        fill(model.state_dict(), other, source=Path("x"))
    assert same(model, before)


def test_a_truncated_checkpoint_is_refused(make):
    run = make(best=1)
    path = run.folder.checkpoint("best")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="truncated"):
        _ = run.model


def test_filling_keeps_the_tensors_where_they_are():
    model = models.build("tiny-cnn")
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    fill(model.state_dict(), weights(5), source=Path("x"))
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == before
    assert same(model, weights(5))


def test_a_folder_that_is_no_run_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        _ = Run(tmp_path).model


# -- the network a config names


def test_equal_seeds_give_equal_weights_and_others_do_not():
    a, b, c = (build_model(Config(model="tiny-cnn", seed=seed)) for seed in (0, 0, 1))
    assert same(a, b.state_dict())
    assert not torch.equal(a.linear.weight, c.linear.weight)


def test_a_set_without_its_bad_files_is_scaled_as_it_is_with_them():
    settings = Config(dataset="tinyimagenet", skip_bad=True, model="tiny-cnn", normalize=True)
    whole = settings.model_copy(update={"skip_bad": False})
    assert torch.equal(build_model(settings).mean, build_model(whole).mean)
    assert torch.equal(build_model(settings).std, build_model(whole).std)


def test_normalisation_is_the_data_sets_and_inside_the_model():
    plain, scaled = (build_model(Config(model="tiny-cnn", normalize=flag)).eval() for flag in (False, True))
    x = torch.rand(2, 3, 32, 32)
    shapes = data.SETS["shapes"]
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (shapes.mean, shapes.std))
    assert torch.allclose(scaled(x), plain((x - mean) / std), atol=1e-5)
    assert not torch.allclose(scaled(x), plain(x), atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "mnist"}, "unknown data set 'mnist'; choose from cifar10, cifar100, shapes, svhn"),
        ({"model": "resnet50"}, "unknown model 'resnet50'; choose from deit-small, preactresnet18, resnet18, "),
        ({"model": "wrn-11-1"}, "unknown model 'wrn-11-1'; choose a depth of 10, 16"),
    ],
)
def test_an_unknown_name_comes_with_the_choices(change, message):
    with pytest.raises(UserError, match=message):
        build_model(Config(**change))
