"""What `pixelpart bench` prints and what it refuses; how fast anything is, is not tested."""

import json
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from pixelpart import models, recipes
from pixelpart.attacks import VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.bench import METHODS, stream, timing
from pixelpart.bench.train import add_figures, forward_flops, passes
from pixelpart.cli.main import main
from pixelpart.evaluation import reference
from pixelpart.files import atomic_write
from pixelpart.runs import save_checkpoint

TINY = ["--model", "tiny-cnn", "--batch-size", "4", "--repeats", "2", "--device", "cpu", "--quiet"]
CPU = torch.device("cpu")
ROW = {
    "what", "baseline", "milliseconds", "ratio", "images_per_second", "times", "peak_mib", "tflops"}  # fmt: skip


def in_rounds(row, other):
    """How many times as long one takes as the other, in the middle of the two rounds."""
    (a, b), (c, d) = row["times"], other["times"]
    return (a / c + b / d) / 2


def run(capsys, *args):
    assert main(["bench", *args]) == 0
    return capsys.readouterr().out


def refused(capsys, *args):
    assert main(["bench", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("what", "rows"), [("attack", 5), ("cam", 5), ("train", 12)]
)  # train: six methods, each with its baseline
def test_json_has_rows_machine_torch_and_settings(capsys, what, rows):
    steps = [] if what == "cam" else ["--steps", "1"]
    found = json.loads(run(capsys, what, *TINY, *steps, "--json"))
    assert found["bench"] == what
    assert found["torch"] == torch.__version__
    assert found["machine"].keys() == {"device", "threads"}
    assert found["settings"]["model"] == "tiny-cnn"
    assert found["settings"]["batch_size"] == 4
    assert len(found["rows"]) == rows
    names = [row["what"] for row in found["rows"]]
    assert len(set(names)) == rows
    for row in found["rows"]:
        base = next(other for other in found["rows"] if other["what"] == row["baseline"])
        assert row.keys() == ROW
        assert len(row["times"]) == 2
        assert row["ratio"] == pytest.approx(in_rounds(base, row))
        assert row["images_per_second"] == pytest.approx(4000 / row["milliseconds"])
        assert row["peak_mib"] is None


def test_scale_varies_batch_size_image_size_and_classes_and_tells_the_share_of_the_masks(capsys):
    found = json.loads(run(capsys, "scale", *TINY, "--steps", "1", "--json"))
    points = [(1, 32, 10), (4, 32, 10), (16, 32, 10), (4, 64, 10), (4, 128, 10), (4, 32, 200), (4, 32, 1000)]
    names = [f"{n} images of {size} x {size}, {classes} classes" for n, size, classes in points]
    assert [row["what"] for row in found["rows"]] == [f"{m}, {name}" for name in names for m in ("at", "part")]
    for i, name in enumerate(names):
        at, part = found["rows"][2 * i : 2 * i + 2]
        assert at["images_per_second"] == pytest.approx(1000 * points[i][0] / at["milliseconds"])
        share = found["figures"][f"share of the masks, {name}"]
        assert share == pytest.approx(1 - in_rounds(at, part))


def test_stream_holds_a_mapped_file_beside_images_on_the_device(capsys):
    found = json.loads(run(capsys, "stream", *TINY, "--steps", "1", "--json"))
    assert [row["what"] for row in found["rows"]] == ["images on the device", "images from a mapped file"]
    assert found["figures"] == {"speed from a mapped file over that on the device": found["rows"][1]["ratio"]}


def test_the_file_behind_it_is_mapped_and_holds_what_was_drawn(tmp_path):
    images = stream.mapped(tmp_path / "images", 7)
    assert images.shape == (7, 3, 32, 32)
    assert torch.from_file(str(tmp_path / "images"), size=images.numel(), dtype=torch.uint8).equal(images.flatten())
    assert images.unique().numel() == 256


def test_scale_makes_a_transformer_for_every_size(capsys):
    model = [word if word != "tiny-cnn" else "vit-tiny" for word in TINY]
    found = json.loads(run(capsys, "scale", *model, "--steps", "1", "--json"))
    assert len(found["rows"]) == 14


def test_autoattack_is_held_against_its_authors_code(capsys, tmp_path, monkeypatch):
    pyautoattack = pytest.importorskip("pyautoattack")

    def small(model, device, *, eps, version, seed):
        return pyautoattack.AutoAttack(model, eps=eps, version="custom", attacks=["apgd-ce"], seed=seed, device="cpu")

    monkeypatch.setattr(reference, "build", small)
    monkeypatch.setitem(VERSIONS, "standard", {"apgd-ce": apgd_search(steps=20)})
    config = recipes.shapes("at", epochs=1)
    model = models.build("tiny-cnn")
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if config.ema:
        state = {name.replace("model.", "average."): tensor for name, tensor in state.items()}
    atomic_write(tmp_path / "config.json", config.to_json())
    facts = {"epoch": 1, "config": config.hash()}
    save_checkpoint(tmp_path / "checkpoints" / "best.safetensors", state, facts)
    found = json.loads(run(capsys, "autoattack", str(tmp_path), "--images", "8", "--device", "cpu", "--json"))
    theirs, ours = found["rows"]
    assert [row["baseline"] for row in found["rows"]] == [theirs["what"]] * 2
    assert ours["ratio"] == pytest.approx(theirs["milliseconds"] / ours["milliseconds"])
    figures = found["figures"]
    apart = figures["images that stand under ours alone"] - figures["images that stand under the reference alone"]
    assert figures["robust accuracy, ours"] - figures["robust accuracy, reference"] == pytest.approx(apart / 8)


def test_a_users_own_network_is_measured_as_well(capsys, tmp_path, monkeypatch):
    (tmp_path / "nets_to_bench.py").write_text(
        "import pixelpart as pp\n\ndef small(k):\n    return pp.models.build('tiny-cnn', num_classes=k)\n"
    )
    monkeypatch.chdir(tmp_path)
    args = ["--model", "nets_to_bench:small", *TINY[2:]]
    assert json.loads(run(capsys, "cam", *args, "--json"))["settings"]["model"] == "nets_to_bench:small"
    assert "no 'large'" in refused(capsys, "cam", "--model", "nets_to_bench:large", *TINY[2:])


@pytest.mark.parametrize("what", ["attack", "cam"])
def test_what_is_neither_bf16_nor_folded_is_told(capsys, tmp_path, monkeypatch, what):
    (tmp_path / "nets_that_branch.py").write_text(
        "from pixelpart.models.tiny import TinyCNN\n\nclass Net(TinyCNN):\n"
        "    def trunk(self, x):\n        return super().trunk(x if x.mean() < 2 else 0 * x)\n\n"
        "def net(k):\n    return Net(k)\n"
    )
    monkeypatch.chdir(tmp_path)
    for model, notes in (("nets_that_branch:net", [": this is fp32, and nothing is folded"]), ("tiny-cnn", [])):
        found = json.loads(run(capsys, what, "--model", model, *TINY[2:], "--json"))
        assert found["notes"] == [f"{model} cannot be computed in bf16{note}" for note in notes]


def test_every_method_is_held_against_its_own_baseline(capsys):
    found = json.loads(run(capsys, "train", *TINY, "--steps", "1", "--methods", "at,part", "--json"))
    assert [(row["what"], row["baseline"]) for row in found["rows"]] == [
        ("at, eager fp32", "at, eager fp32"),
        ("at, ours", "at, eager fp32"),
        ("part, eager fp32, masks one by one", "part, eager fp32, masks one by one"),
        ("part, ours", "part, eager fp32, masks one by one"),
    ]
    assert found["figures"].keys() == {"time of part over at"}


def test_table_has_a_line_for_each_row(capsys):
    lines = run(capsys, "train", *TINY, "--steps", "1", "--methods", "trades", "--precision", "fp32").splitlines()
    assert lines[0].split() == ["ms", "ratio", "us/image", "images/s"]
    assert lines[1].startswith("trades, eager fp32")
    assert "1.00x" in lines[1]
    assert lines[2].startswith("trades, ours")
    assert "precision fp32" in lines[-1]


def test_table_shows_memory_where_it_was_measured():
    rows = [
        timing.Row("at, ours", "at, ours", 10.0, 1.0, 12800.0, [10.0], peak_mib=1000.0, tflops=218.0),
        timing.Row("part, ours", "at, ours", 10.4, 0.96, 12300.0, [10.4], peak_mib=1050.0),
    ]
    report = timing.Report("train", {"steps": 10}, {"device": "a GPU"}, rows, notes=["it ran plainly"])
    add_figures(report, ["at", "part"])
    text = str(report)
    assert text.splitlines()[0].split() == ["ms", "ratio", "us/image", "images/s", "peak", "MiB", "TFLOP/s"]
    assert "time of part over at: 1.040" in text
    assert "peak memory of part over at: 1.050" in text
    assert "it ran plainly" in text


def test_ways_take_turns_and_time_and_ratio_are_medians_of_the_rounds(monkeypatch):
    turns, clock = [], iter([9.0, 9.0, 1.0, 2.0, 8.0, 4.0, 3.0, 1.0])
    monkeypatch.setattr(timing, "once", lambda run, device, calls=1: run() or next(clock))
    makers = {name: lambda name=name: lambda: turns.append(name) for name in "ab"}
    a, b = timing.compare(makers, device=CPU, images=6, repeats=3, say=lambda line: None)
    assert "".join(turns) == "abababab"
    assert (a.milliseconds, a.ratio, a.times) == (3.0, 1.0, [1.0, 8.0, 3.0])
    assert (b.milliseconds, b.ratio, b.images_per_second) == (2.0, 2.0, 3000.0)  # of .5, 2 and 3, not 3 / 2


@pytest.mark.parametrize(("milliseconds", "calls"), [(12.0, 5), (1200.0, 1)])
def test_on_a_gpu_what_is_quick_is_called_several_times_in_a_row(monkeypatch, milliseconds, calls):
    monkeypatch.setattr(timing, "once", lambda run, device: milliseconds)
    assert timing.calls_of(print, torch.device("cuda")) == calls
    assert timing.calls_of(print, CPU) == 1


@pytest.mark.parametrize(("precision", "products"), [("bf16", "high"), ("fp32", "highest")])
def test_on_a_gpu_products_are_those_of_a_run_in_that_precision(monkeypatch, precision, products):
    monkeypatch.setattr("pixelpart.bench.timing.current", lambda device: nullcontext())
    monkeypatch.setattr("pixelpart.runtime.precision.current", lambda device: nullcontext())
    with timing.arithmetic(torch.device("cuda"), precision):
        assert torch.get_float32_matmul_precision() == products


def test_passes_of_a_step_are_those_of_the_algorithm():
    assert {method: passes(method, 10) for method in METHODS} == {
        "at": 23, "part": 24, "trades": 27, "part-t": 27, "mart": 26, "part-m": 27}  # fmt: skip


def test_flops_of_resnet18_are_the_known_ones():
    assert forward_flops(models.build("resnet18")) == pytest.approx(2 * 0.5558e9, rel=0.01)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing"], "'nothing'"),
        ([], "what"),
        (["train", "--methods", "at,fgsm"], "unknown method 'fgsm'; choose from at, mart, part, part-m"),
        (["train", "somewhere"], "bench train does not take a run folder"),
        (["autoattack"], "bench autoattack RUN"),
        (["attack", "--batch-size", "0"], "'0' is not a whole number above 0"),
        (["attack", "--steps", "ten"], "'ten' is not a whole number above 0"),
        (["attack", "--methods", "at"], "bench attack does not take --methods"),
        (["cam", "--steps", "3"], "bench cam does not take --steps"),
        (["train", "--precision", "fp8"], "'fp8'"),
        (["attack", "--model", "resnet19"], "unknown model 'resnet19'"),
        (["cam", "--device", "abacus"], "no device 'abacus'"),
    ],
)
def test_a_mistake_is_told_in_one_line(capsys, args, message):
    assert message in refused(capsys, *args)


def test_mistakes_and_help_do_without_torch():
    code = (
        "import sys, pixelpart.cli.main as c; c.main(['bench', '--help']); c.main(['bench', 'cam', '--steps', '1']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
