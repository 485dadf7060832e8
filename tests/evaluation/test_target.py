"""Models by name: a run folder, a checkpoint, an archive, a function; and where their results are kept."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from checkpoints import facts_of
from pixelpart import models
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.evaluation.checks.obfuscation import check
from pixelpart.evaluation.corruptions import corruptions
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.runs import Run, save_checkpoint

FEW = {"attacks": ["natural", "pgd1"], "images": 8, "eps": 2 / 255}


@pytest.fixture
def checkpoint(tmp_path):
    """Writes an untrained checkpoint of tiny-cnn outside a run folder."""

    def write(name="alone.safetensors", *, of=None, **settings):
        config = Config(**{"dataset": "shapes", "model": "tiny-cnn"} | settings)
        facts = facts_of(config, epoch=3) | ({"config": of} if of else {})
        state = {}
        for seed, prefix in ((1, "model."), *(((2, "average."),) if config.ema else ())):
            model = models.build("tiny-cnn", generator=torch.Generator().manual_seed(seed))
            state |= {prefix + key: value for key, value in model.state_dict().items()}
        save_checkpoint(tmp_path / name, state, facts)
        return tmp_path / name

    return write


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module in the working folder with a function that makes a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "subject_models.py").write_text(
        "import pixelpart as pp\ndef small():\n    return pp.models.build('tiny-cnn').eval()\n"
    )
    yield "subject_models:small"
    sys.modules.pop("subject_models", None)


# -- a checkpoint outside its folder


def test_a_checkpoint_is_evaluated_like_its_run(checkpoint, run):
    alone = checkpoint()  # the weights of the run's best
    mine, theirs = evaluate(alone, **FEW), evaluate(run, **FEW)
    assert all(np.array_equal(mine.flags[name], theirs.flags[name]) for name in mine)
    about = {"subject": str(alone), "checkpoint": None, "epoch": 3, "weights": "raw", "dataset": "shapes"}
    assert mine.entries[0].items() >= about.items()
    assert mine.entries[0]["flags"] is None


def test_averaged_weights_are_used_if_there_are_any(checkpoint):
    result = evaluate(str(checkpoint(ema=0.9)), attacks="natural", images=8)
    assert result.entries[0]["weights"] == "averaged"
    second = models.build("tiny-cnn", generator=torch.Generator().manual_seed(2))
    again = evaluate(second.eval(), data="shapes", attacks="natural", images=8)
    assert np.array_equal(result.flags["natural"], again.flags["natural"])


def test_a_checkpoint_without_its_config_is_refused(run):
    state = {f"model.{name}": value for name, value in run.model.state_dict().items()}
    save_checkpoint(run.folder.checkpoint("best"), state, {"epoch": 1, "config": run.config.hash()})
    with pytest.raises(UserError, match=r"best\.safetensors .*not a pixelpart checkpoint .*settings: Field required"):
        evaluate(run.folder.checkpoint("best"))


def test_a_checkpoint_that_does_not_fit_its_config_is_refused(checkpoint, tmp_path):
    with pytest.raises(UserError, match="belongs to another model"):
        evaluate(checkpoint(model="wrn-10-1"))
    with pytest.raises(UserError, match="belongs to another run"):
        evaluate(checkpoint(of="1234"))
    with pytest.raises(UserError, match="unknown model 'own'"):
        evaluate(checkpoint(model="own"))
    path = checkpoint()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="truncated"):
        evaluate(path)
    with pytest.raises(UserError, match="no checkpoint at"):
        evaluate(tmp_path / "nothing.safetensors")


def test_user_code_named_in_a_file_is_never_run(checkpoint, own, run):
    with pytest.raises(UserError, match="is user code and is never loaded from a config"):
        evaluate(checkpoint(model=own))
    with pytest.raises(UserError, match="is user code and is never loaded from a config"):
        evaluate(checkpoint(dataset=own))
    config = run.dir / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model": own}))
    with pytest.raises(UserError, match="is user code and is never loaded from a config"):
        evaluate(Run(run.dir))
    assert "subject_models" not in sys.modules


# -- a function


def test_a_function_is_evaluated_like_its_model(own):
    result = evaluate(own, data="shapes", **FEW)
    expected = evaluate(models.build("tiny-cnn").eval(), data="shapes", **FEW)
    assert all(np.array_equal(result.flags[name], expected.flags[name]) for name in result)
    assert result.entries[0]["subject"] == own
    assert result["natural"].warnings == []


def test_a_new_model_of_a_function_is_in_train_mode_and_needs_no_warning(own, tmp_path):
    (tmp_path / "subject_models.py").write_text(
        "import pixelpart as pp\ndef small(): return pp.models.build('tiny-cnn')"
    )
    assert evaluate(own, data="shapes", **FEW)["natural"].warnings == []


def test_without_images_nothing_is_imported(own, tmp_path):
    for name in (own, str(tmp_path / "nothing.pt2")):
        with pytest.raises(
            UserError,
            match=r"has no data set of its own; .* one of cifar10, .*tinyimagenet, folder:PATH, module:function, or",
        ):
            evaluate(name)
    assert "subject_models" not in sys.modules


def test_a_path_is_never_a_function(own, tmp_path):
    with pytest.raises(UserError, match="it does not exist"):
        evaluate(tmp_path / "a:b", data="shapes")
    (tmp_path / "subject_models:small").write_text("")
    with pytest.raises(UserError, match="not a kind of file"):
        evaluate(own, data="shapes")


# -- what is refused


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin"])
def test_a_pickle_is_not_loaded(name, tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    torch.save(Trap(), tmp_path / name)
    with pytest.raises(UserError, match=r"is a pickle file, .*; give a module:function of yours"):
        evaluate(tmp_path / name, data="shapes")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["runs/nothing", "nothing.pt"])
def test_a_missing_path_is_reported_with_the_choices(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{name} is not a run folder: it does not exist; give a run folder, "):
        evaluate(name)


def test_another_kind_of_file_is_reported_with_the_choices(run):
    with pytest.raises(UserError, match=r"config\.json is not a kind of file .*; give .* or module:function"):
        evaluate(run.dir / "config.json")


def test_the_checkpoint_argument_needs_a_run(checkpoint, plane, pair):
    for subject in (checkpoint(), plane, "a:b"):
        with pytest.raises(UserError, match="checkpoint 'last' needs a run folder"):
            evaluate(subject, checkpoint="last", data=pair)


# -- where results go


def test_results_of_functions_and_checkpoints_are_kept_in_out(own, checkpoint, tmp_path):
    file = str(checkpoint())
    for subject, name in ((own, {"name": "own"}), (file, {})):
        first, second = (evaluate(subject, data="shapes", out=tmp_path / "kept", **name, **FEW) for _ in range(2))
        assert not any(first[attack].reused for attack in first)
        assert all(second[attack].reused for attack in second)
    entries = json.loads((tmp_path / "kept" / "eval.json").read_text())["entries"]
    assert [entry["subject"] for entry in entries] == ["own", "own", file, file]


def test_two_runs_keep_their_results_in_one_folder(run, tmp_path):
    other = Run(shutil.copytree(run.dir, tmp_path / "other"))
    shutil.copy(other.folder.checkpoint("last"), other.folder.checkpoint("best"))
    for one in (run, other):
        evaluate(one, out=tmp_path / "both", **FEW)
    entries = json.loads((tmp_path / "both" / "eval.json").read_text())["entries"]
    assert [entry["subject"] for entry in entries] == [str(run.dir)] * 2 + [str(other.dir)] * 2
    assert not (run.dir / "eval.json").exists()


def test_a_run_folder_keeps_only_its_own_results(run, plane, pair, tmp_path):
    other = shutil.copytree(run.dir, tmp_path / "other")
    for subject, data in ((plane, pair), (Run(other), None)):
        with pytest.raises(UserError, match="is a run folder and keeps only that run's results; choose another out"):
            evaluate(subject, data=data, out=run.dir)
    result = evaluate(run, out=str(run.dir), attacks="natural", images=4)
    assert result.entries[0]["subject"] is None
    assert (run.dir / "eval.json").exists()


def test_out_that_is_a_file_is_refused_before_any_work(plane, pair, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: it is not a folder"):
        evaluate(plane, data=pair, out=tmp_path / "file", progress=pytest.fail)


@pytest.mark.parametrize(
    ("measure", "settings", "attacked"),
    [
        (evaluate, {"attacks": "natural"}, False),
        (evaluate, {"attacks": "pgd1"}, True),
        (evaluate, {"attacks": "apgd"}, True),
        (check, {}, True),
        (corruptions, {"names": "fog", "severities": (1,)}, False),
    ],
)
@pytest.mark.usefixtures("short_searches")
def test_the_model_gets_batch_size_images_at_a_time(measure, settings, attacked, net, pair):
    x, sizes = (255 * pair[0]).byte(), {False: [], True: []}
    y = net(x / 255).argmax(1)
    net.register_forward_pre_hook(lambda _, given: sizes[given[0].requires_grad].append(len(given[0])))
    measure(net, data=(x, y), batch_size=14, **settings)
    assert 14 in sizes[attacked]
