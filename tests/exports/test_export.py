"""What is written gives the logits of the run's model, in programs that do not know pixelpart, and says what it is."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors import safe_open

import pixelpart as pp
from checkpoints import facts_of
from command_line import mistake
from pixelpart.cli.main import main
from pixelpart.config import Config, height_width
from pixelpart.engine.checkpoint import find_parent
from pixelpart.errors import UserError
from pixelpart.evaluation.results import on_most_images, with_checksum
from pixelpart.exports import FORMATS, formats
from pixelpart.exports.card import model_card
from pixelpart.exports.trained import Trained
from pixelpart.files import atomic_write
from pixelpart.listing import read_run
from pixelpart.runs import Run, save_checkpoint
from pixelpart.sweeps.table import read_table
from pixelpart.sweeps.work import Job

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
    assert (about["shape"], about["pictures"]["background"]) == ([3, *SIZE], "white")
    assert about["training"]["epochs"] == "1 of 2: training is unfinished"
    assert about["training"]["eps"] == "8/255"
    assert (about["checkpoint"], about["epoch"], about["weights"]) == ("best", 1, "averaged")
    assert about["results"] == [
        {"attack": "natural", "eps": 0.0, "accuracy": right.accuracy, "interval": list(right.interval), "n": 6,
         "warnings": right.warnings}
    ]  # fmt: skip


def rewritten(run, entry):
    """eval.json with this entry, as one of the run's own test images."""
    entry = with_checksum(entry | {"dataset": run.config.data_label, "split": "test"})
    return json.dumps({"schema_version": 1, "entries": [entry]})


def test_an_archive_knows_the_classes_the_size_and_the_channels_of_its_pictures(make_run, tmp_path) -> None:
    run = make_run(channels=1)
    pp.export(run, to="pt2")
    rng = np.random.default_rng(0)
    for label, name in enumerate(("bird", "cat")):  # in another order than the model's, and one is missing
        for number in range(10):
            path = tmp_path / "new" / "test" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (30, 30), dtype=np.uint8) // (1 + 3 * label)).save(path)
    settings = {"attacks": "natural,pgd2", "data": f"folder:{tmp_path / 'new'}", "device": "cpu"}
    of_run, of_file = pp.evaluate(run, **settings), pp.evaluate("photos.pt2", **settings)
    assert 0 < of_run["natural"].correct < 20
    for attack, flags in of_run.flags.items():
        assert np.array_equal(of_file.flags[attack], flags)
    with pytest.raises(UserError, match="label 0 of shapes is 'disc', the model's is 'cat'"):
        pp.evaluate("photos.pt2", attacks="natural", data="shapes")
    with pytest.raises(UserError, match=r"photos.pt2 takes images of shape \(1, 16, 24\); these are \(1, 8, 8\)"):
        pp.evaluate("photos.pt2", **settings, size=8)


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
    run = make_run(model, size=32)
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
    text = model_card(trained, "photos")
    assert "| autoattack, eps 8/255 | 25.00 * | [20.00, 30.00] | 400 |" in text
    assert "autoattack, eps 8/255: zero gradients" in text
    assert "somewhere" not in text
    assert "The classes, in this order: `cat`, `dog`, `bird`." in text
    assert "`pixelpart evaluate photos --checkpoint best --attacks natural,autoattack --data folder:PICTURES`" in text
    assert "| epochs | 1 of 2: training is unfinished |" in text
    assert "Pixel\nReweighted" in text
    front = text.split("---")[1]
    index = json.loads(front[front.index("[{") : front.rindex("]") + 1])
    assert index[0]["results"][0]["metrics"] == [
        {"type": "accuracy", "name": "autoattack, eps 8/255", "value": 25.0},
    ]
    assert "No results on its test images are kept" in model_card(
        Trained(run, "best", *run.load("best"), results=[]), "photos"
    )


@pytest.mark.parametrize(
    ("attack", "eps", "expected"),
    [
        ("pgd20", 4 / 255, "pgd20, eps 4/255"),
        ("pgd20@4/255", 4 / 255, "pgd20@4/255"),
        ("apgd-ce-l2", 0.5, "apgd-ce-l2, l2 eps 0.5"),
        ("adaptive-pgd20", 12 / 255, "adaptive-pgd20, eps 12/255 and 8/255"),
        ("removed20", 8 / 255, "removed20, eps 8/255"),
    ],
)
def test_the_model_card_names_the_bound_of_an_attack(make_run, attack, eps, expected) -> None:
    run = make_run()
    entry = {"attack": attack, "eps": eps, "accuracy": 0.5, "interval": [0.4, 0.6], "n": 100}
    assert f"| {expected} | 50.00 |" in model_card(Trained(run, "best", *run.load("best"), results=[entry]), "photos")


@pytest.mark.parametrize("model", ["tiny-cnn", "cards_network:build"])
def test_the_code_on_a_model_card_runs_next_to_the_folder(make_run, tmp_path, monkeypatch, model) -> None:
    """Also where the original run is not, and with a network of the user's own."""
    (tmp_path / "cards_network.py").write_text(
        "from torch import nn\n"
        "def build(num_classes):\n"
        "    parts = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes)\n"
        "    return nn.Sequential(*parts)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(pp.models, "USER_MODELS", {model})
    run = make_run(model)
    expected = run.model(images(run))
    folder = pp.export(run, to="hub", out="elsewhere/robust").resolve()
    monkeypatch.setattr(pp.models, "USER_MODELS", set())
    monkeypatch.chdir(folder.parent)
    text, found = (folder / "README.md").read_text(), {}
    assert (
        ("with the code of `cards_network:build`" in text) == ("--model cards_network:build" in text) == (":" in model)
    )
    exec(compile(text.split("```python\n")[1].split("```")[0], "README.md", "exec"), found)
    assert torch.equal(found["model"](images(run)), expected)


def test_results_of_weights_that_training_replaced_are_nobodys(make_run) -> None:
    run = make_run()
    x, y = images(run, 12), torch.arange(12) % 3
    pp.evaluate(run, data=(x, y), attacks="natural", device="cpu", checkpoint="last")
    entries = json.loads((run.dir / "eval.json").read_text())["entries"]
    atomic_write(run.dir / "eval.json", rewritten(run, entries[0]))
    assert [entry["epoch"] for entry in Trained.of(run, "last").results] == [2]
    assert read_run(run.dir).natural.accuracy == entries[0]["accuracy"]
    job = Job(run.config, ("natural",), checkpoint="last")
    assert read_table([job], {job.id: run.dir})[0]["natural"] == entries[0]["accuracy"]
    atomic_write(run.dir / "eval.json", rewritten(run, entries[0] | {"epoch": 1}))
    assert Trained.of(run, "last").results == []
    assert read_run(run.dir).natural is None
    assert read_table([job], {job.id: run.dir})[0]["natural"] is None


def test_of_several_results_of_an_attack_the_lowest_on_the_most_images_counts() -> None:
    def entry(attack, eps, n, accuracy):
        return {"attack": attack, "eps": eps, "n": n, "accuracy": accuracy}

    entries = [
        entry("pgd20", 8, 50, 0.1), entry("natural", 0, 100, 0.9), entry("pgd20", 8, 100, 0.4),
        entry("pgd20", 8, 100, 0.3), entry("pgd20", 4, 100, 0.6), entry("pgd20", 8, 100, 0.5),
    ]  # fmt: skip
    assert on_most_images(entries) == [entries[3], entries[1], entries[4]]


def test_a_hub_folder_that_cannot_be_written_leaves_nothing(make_run, monkeypatch) -> None:
    run = make_run()

    def fail(trained, name):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pixelpart.exports.hub.model_card", fail)
    with pytest.raises(UserError, match=r"^cannot write shared/photos: No space left on device$"):
        pp.export(run, to="hub", out="shared/photos")
    assert list((run.dir.resolve().parent / "shared").iterdir()) == []


def test_a_run_whose_log_is_lost_is_no_export(make_run) -> None:
    run = make_run()
    atomic_write(run.dir / "metrics.jsonl", "")
    run.folder.log_file.unlink(missing_ok=True)
    atomic_write(run.dir / "README.md", "# Notes of my own\n")
    run.folder.check_config(run.config)
    exported = pp.export(run, to="hub")
    config = run.config.model_copy(update={"init_from": f"{exported}@1"})
    with pytest.raises(UserError, match=f"cannot fork {exported}: it was exported"):
        find_parent(config)


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
    mistake(capsys, ["export", "photos", "--to", "robustbench"], "resnet18, preactresnet18 and wrn-*, and this run is")
    mistake(
        capsys, ["export", "photos", "--to", "pt2", "--checkpoint", "../best"], "'../best' in photos; choose from best"
    )
    file = "photos/checkpoints/best.safetensors"
    mistake(capsys, ["export", file, "--to", "pt2"], f"{file} is not a run folder: it is a file")
    mistake(capsys, ["export", "photos", "--to", "pt2", "--out", "a" * 300], "aaa: File name too long")
    mistake(capsys, ["export", "photos", "--to", "pt2", "--checkpoint", "epoch-7"], "no checkpoint 'epoch-7'")
    mistake(capsys, ["export", "absent", "--to", "pt2"], "absent is not a run folder")
    make_run("resnet18", name="scaled", normalize=True, size=32)
    make_run("wrn-10-1", name="small", size=24)
    mistake(capsys, ["export", "small", "--to", "robustbench"], "wrn-10-1 takes 3 x 32 x 32 images, and this run has")
    mistake(capsys, ["export", "scaled", "--to", "robustbench"], "this one normalises them")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    mistake(capsys, ["export", "photos", "--to", "onnx"], "--to onnx needs onnxscript: pip install 'pixelpart[onnx]'")
    assert sorted(path.name for path in run.dir.resolve().parent.iterdir()) == ["photos", "scaled", "small"]
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
    with pytest.raises(UserError, match="logits of the exported tiny-cnn differ from the model's by up to"):
        formats.check_logits(trained, lambda x: trained.model(x) + 0.01)
    with pytest.raises(UserError, match="differ"):
        formats.check_logits(trained, lambda x: trained.model(x) * float("nan"))


class Branching(torch.nn.Module):
    """A network whose forward pass depends on a value."""

    def forward(self, x):
        return (x / 255 if x.max() > 1 else x).mean((2, 3))


@pytest.mark.parametrize(("to", "exporter"), [("pt2", "torch.export"), ("onnx", "torch.onnx")])
def test_a_network_that_cannot_be_exported_is_a_user_error_in_one_line(make_run, to, exporter, capfd) -> None:
    trained = dataclasses.replace(Trained.of(make_run(), "best"), model=Branching())
    with pytest.raises(UserError, match=rf"^{exporter} cannot export tiny-cnn: Could not guard on data.*$") as caught:
        FORMATS[to].write(trained, Path(f"photos.{to}"))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert not Path(f"photos.{to}").exists()


@pytest.mark.parametrize("file", ["noise.png", "large.jpg"])
def test_pillow_alone_reads_a_picture_as_training_does(make_run, tmp_path, file) -> None:
    """As docs/howto/own-data.md does."""
    run, (height, width) = make_run(), SIZE
    rows, columns = (600, 410) if file == "large.jpg" else (60, 41)
    noise = np.random.default_rng(0).integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    picture = Image.open(file)
    picture.draft("RGB", (2 * width, 2 * height))
    picture = ImageOps.exif_transpose(picture).convert("RGB")
    picture = ImageOps.fit(picture, (width, height), Image.Resampling.BICUBIC)
    expected = pp.data.read_picture(file, run.config)
    assert torch.equal(torch.tensor(np.array(picture)).permute(2, 0, 1), expected)


@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_a_network_that_fixes_the_number_of_images_is_refused_in_one_line(to, make_run, monkeypatch) -> None:
    run = make_run()
    forward = type(run.model).forward
    monkeypatch.setattr(type(run.model), "forward", lambda self, x: forward(self, x) + 0 * float(len(x)))
    with pytest.raises(UserError, match="images") as caught:
        pp.export(run, to=to)
    assert "\n" not in str(caught.value)
    assert not Path(f"photos.{to}").exists()


def test_mistakes_in_names_are_reported_before_existing_files(make_run, capsys) -> None:
    run = make_run()
    Path("pictures").mkdir()
    atomic_write(Path("pictures.pt2"), "")
    mistake(capsys, ["export", "pictures", "--to", "pt2"], "pictures is not a run folder")
    mistake(capsys, ["export", run.dir], "--to is missing; choose from pt2, onnx")
    mistake(capsys, ["export", run.dir, "--to", "onnx", "--out", "x.pt2"], "--to onnx does not write .pt2 files")
