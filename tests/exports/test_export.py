"""What is written gives the logits of the run's model, in programs that do not know pixelpart, and says what it is."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open

import pixelpart as pp
from checkpoints import facts_of
from command_line import mistake
from pixelpart.cli.main import main
from pixelpart.config import Config, height_width
from pixelpart.errors import UserError
from pixelpart.evaluation.entries import with_checksum
from pixelpart.exports import formats
from pixelpart.exports.card import model_card
from pixelpart.exports.trained import Trained
from pixelpart.files import atomic_write
from pixelpart.runs import Run, save_checkpoint

onnxruntime = pytest.importorskip("onnxruntime")  # not on every machine that runs the tests for GPUs

SIZE = (16, 24)
CLASSES = ("cat", "dog", "bird")


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """A run on pictures that are not at hand, with averaged weights; its best and last differ."""
    monkeypatch.chdir(tmp_path)

    def write(model="tiny-cnn", *, name="photos", normalize=False, ema=0.9, channels=3, size=SIZE):
        config = Config(
            dataset="folder:/somewhere/pictures", size=size, num_classes=3, classes=CLASSES, channels=channels,
            model=model, normalize=normalize, ema=ema, epochs=2, mask={"rule": "mean"},
        )  # fmt: skip
        atomic_write(tmp_path / name / "config.json", config.to_json())
        for epoch, checkpoint in enumerate(("best", "last"), start=1):
            tensors = {}
            for seed, prefix in enumerate(("average", "model", "momentum")):
                generator = torch.Generator().manual_seed(10 * epoch + seed)
                net = pp.models.build(model, num_classes=3, size=size, channels=channels, generator=generator)
                for part in net.modules():  # batch norm that differs from the identity
                    if isinstance(part, torch.nn.BatchNorm2d):
                        part.running_mean.uniform_(-0.1, 0.1, generator=generator)
                        part.running_var.uniform_(0.5, 2, generator=generator)
                if net.pooled_linear is not None:  # so that it does not predict one class
                    x = torch.rand(64, channels, *height_width(size), generator=generator)
                    net.pooled_linear.bias.data -= net.eval()(x).mean(0).detach()
                tensors |= {f"{prefix}.{key}": value for key, value in net.state_dict().items()}
            save_checkpoint(tmp_path / name / f"checkpoints/{checkpoint}.safetensors", tensors, facts_of(config, epoch))
        return Run(name)

    return write


def images(run, n=5):
    channels, (h, w) = run.config.channels, SIZE
    return torch.rand(n, channels, h, w, generator=torch.Generator().manual_seed(7))


def read_pt2(path):
    return torch.export.load(path).module()


def read_onnx(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


@pytest.mark.parametrize(("to", "read"), [("pt2", read_pt2), ("onnx", read_onnx)])
@pytest.mark.parametrize("settings", [{}, {"model": "resnet18", "normalize": True}, {"channels": 1, "ema": 0.0}])
def test_the_exported_network_has_the_logits_of_the_checkpoint(to, read, settings, make_run) -> None:
    run = make_run(**settings)
    for checkpoint in ("best", "last"):
        path = pp.export(run, to=to, out=f"{checkpoint}.{to}", checkpoint=checkpoint)
        model = run.load(checkpoint)[0]
        for n in (1, 5):  # it is traced with two images
            with torch.no_grad():
                torch.testing.assert_close(read(path)(images(run, n)), model(images(run, n)), atol=1e-5, rtol=1e-4)


def test_an_exported_file_names_the_classes_and_the_results(make_run) -> None:
    run = make_run()
    x, y = torch.rand(6, 3, *SIZE), torch.tensor([0, 1, 2, 0, 1, 2])
    right = pp.evaluate(run, attacks="natural", data=(x, y), device="cpu")["natural"]
    atomic_write(run.dir / "eval.json", rewritten(run, right.entry))
    pp.export(run, to="pt2")
    pp.export(run, to="onnx")
    extra = {formats.METADATA: ""}
    torch.export.load("photos.pt2", extra_files=extra)
    found = onnxruntime.InferenceSession("photos.onnx").get_modelmeta().custom_metadata_map
    assert found == extra
    about = json.loads(found[formats.METADATA])
    assert about["classes"] == list(CLASSES)
    assert (about["checkpoint"], about["epoch"], about["weights"]) == ("best", 1, "averaged")
    assert about["results"] == [
        {"attack": "natural", "eps": 0.0, "accuracy": right.accuracy, "interval": list(right.interval), "n": 6,
         "warnings": right.warnings}
    ]  # fmt: skip


def rewritten(run, entry):
    """eval.json with this entry, as one of the run's own test images."""
    entry = with_checksum(entry | {"dataset": run.config.data_label, "split": "test"})
    return json.dumps({"schema_version": 1, "entries": [entry]})


def test_evaluate_measures_the_same_with_an_exported_archive(make_run) -> None:
    run = make_run()
    x = images(run, 40)
    with torch.no_grad():
        y = run.model(x).argmax(1)
    y[::8] = (y[::8] + 1) % 3
    pp.export(run, to="pt2")
    settings = {"data": (x, y), "attacks": ["natural", "pgd10"], "device": "cpu", "eps": 1 / 255}
    of_run, of_file = pp.evaluate(run, **settings), pp.evaluate("photos.pt2", **settings)
    assert 0 < of_run["pgd10"].correct < of_run["natural"].correct == 35
    for attack, flags in of_run.flags.items():
        assert np.array_equal(of_file.flags[attack], flags)


@pytest.mark.parametrize("model", ["resnet18", "preactresnet18", "wrn-10-1"])
def test_robustbench_weights_are_the_evaluated_ones_by_their_own_names(model, make_run) -> None:
    run = make_run(model)
    state = torch.load(pp.export(run, to="robustbench"), weights_only=True)
    expected = run.model.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], expected[name]) for name in state)
    first = {"resnet18": "layer1.0.conv1.weight", "preactresnet18": "layer1.0.conv1.weight"}
    assert first.get(model, "block1.layer.0.conv1.weight") in state


def test_a_hub_folder_is_a_run_without_what_only_training_needs(make_run) -> None:
    run = make_run()
    x, y = images(run, 12), torch.arange(12) % 3
    settings = {"attacks": "natural,pgd2", "device": "cpu"}
    outcome = pp.evaluate(run, data=(x, y), **settings)["natural"]
    entries = json.loads((run.dir / "eval.json").read_text())["entries"]
    atomic_write(run.dir / "eval.json", rewritten(run, entries[0]))
    atomic_write(run.dir / "metrics.jsonl", "")
    path = pp.export(run, to="hub", out="shared/photos-robust")
    shared = Run(path)
    with torch.no_grad():
        assert torch.equal(shared.model(x), run.model(x))
    with safe_open(shared.find_checkpoint("best"), "pt") as file:
        assert {name.partition(".")[0] for name in file.keys()} == {"average"}  # noqa: SIM118  (safetensors has no iteration)
    again = pp.evaluate(shared, data=(x, y), **settings)
    assert again["natural"].reused
    assert again["natural"].correct == outcome.correct
    assert not again["pgd2"].reused
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["photos-robust"]
    last = Run(pp.export(run, to="hub", out="shared/last", checkpoint="last"))
    for exported in (shared, last):
        with pytest.raises(UserError, match=f"{exported.dir} was exported and cannot be trained further"):
            exported.folder.check_config(exported.config)


def test_the_model_card_tells_what_was_measured_and_hides_the_folder(make_run) -> None:
    run = make_run()
    entry = {
        "attack": "autoattack", "eps": 8 / 255, "accuracy": 0.25, "interval": [0.2, 0.3], "n": 400,
        "warnings": ["zero gradients"],
    }  # fmt: skip
    trained = Trained(run, "best", *run.load("best"), results=[entry])
    text = model_card(trained)
    assert "| autoattack, 8/255 | 25.00 * | [20.00, 30.00] | 400 |" in text
    assert "autoattack, 8/255: zero gradients" in text
    assert "somewhere" not in text
    front = text.split("---")[1]
    index = json.loads(front[front.index("[{") : front.rindex("]") + 1])
    assert index[0]["results"][0]["metrics"] == [
        {"type": "accuracy", "name": "autoattack, 8/255", "value": 25.0},
    ]
    code = text.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})
    assert "has not been measured" in model_card(Trained(run, "best", *run.load("best"), results=[]))


def test_results_are_those_of_the_checkpoint_on_the_most_test_images(make_run) -> None:
    run = make_run()
    x, y = images(run, 12), torch.arange(12) % 3
    for n in (6, 12):
        pp.evaluate(run, data=(x[:n], y[:n]), attacks="natural", device="cpu")
    pp.evaluate(run, data=(x, y), attacks="natural", device="cpu", checkpoint="last")
    text = (run.dir / "eval.json").read_text()
    assert Trained.of(run, "best").results == []  # measured on other images than the run's own
    entries = [
        with_checksum(entry | {"dataset": run.config.data_label, "split": "test"})
        for entry in json.loads(text)["entries"]
    ]
    atomic_write(run.dir / "eval.json", json.dumps({"schema_version": 1, "entries": entries}))
    assert [(entry["n"], entry["checkpoint"]) for entry in Trained.of(run, "best").results] == [(12, "best")]


def test_a_mistake_is_one_line_and_writes_nothing(make_run, capsys, monkeypatch) -> None:
    run = make_run("vit-tiny", size=32)
    mistake(
        capsys, ["export", "photos", "--to", "tflite"], "unknown export format 'tflite'; choose from hub, onnx, pt2"
    )
    mistake(capsys, ["export", "photos", "--to", "robustbench"], "RobustBench has no network 'vit-tiny'")
    mistake(capsys, ["export", "photos", "--to", "pt2", "--checkpoint", "epoch-7"], "no checkpoint 'epoch-7'")
    mistake(capsys, ["export", "absent", "--to", "pt2"], "absent is not a run folder")
    make_run("resnet18", name="scaled", normalize=True)
    mistake(capsys, ["export", "scaled", "--to", "robustbench"], "this one normalises them")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    mistake(capsys, ["export", "photos", "--to", "onnx"], "--to onnx needs onnxscript: pip install 'pixelpart[onnx]'")
    assert sorted(path.name for path in run.dir.resolve().parent.iterdir()) == ["photos", "scaled"]
    (run.dir.parent / "photos.pt2").write_text("mine")
    mistake(capsys, ["export", "photos", "--to", "pt2"], "photos.pt2 exists; choose another --out, or delete it")
    assert (run.dir.parent / "photos.pt2").read_text() == "mine"


def test_the_command_prints_the_path(make_run, capsys) -> None:
    make_run()
    assert main(["export", "photos", "--to", "pt2", "--out", "other.pt2", "--checkpoint", "last"]) == 0
    assert capsys.readouterr().out == "other.pt2\n"


def test_a_network_whose_export_computes_something_else_is_refused(make_run) -> None:
    run = make_run()
    trained = Trained.of(run, "best")
    formats.check_logits(trained, trained.model)
    with pytest.raises(UserError, match="logits differ from the model's by up to"):
        formats.check_logits(trained, lambda x: trained.model(x) + 0.01)
    with pytest.raises(UserError, match="differ"):
        formats.check_logits(trained, lambda x: trained.model(x) * float("nan"))


def test_a_network_that_cannot_be_exported_is_a_user_error(make_run, monkeypatch) -> None:
    run = make_run()

    def fail(*args, **settings):
        raise RuntimeError("data-dependent branch\nmore")

    monkeypatch.setattr(torch.export, "export", fail)
    with pytest.raises(UserError, match=r"^torch.export cannot export tiny-cnn: data-dependent branch$"):
        pp.export(run, to="pt2")
