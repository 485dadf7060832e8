"""What `pixelpart bench` prints, and its error messages; speed itself is not tested."""

import json
from contextlib import nullcontext

import pytest
import torch

from checkpoints import facts_of
from pixelpart import models, recipes
from pixelpart.attacks import VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.bench import METHODS, timing
from pixelpart.bench.train import add_mask_costs, forward_flops, passes
from pixelpart.cli.main import main
from pixelpart.evaluation import reference
from pixelpart.files import atomic_write
from pixelpart.runs import save_checkpoint

TINY = ["--model", "tiny-cnn", "--batch-size", "4", "--repeats", "2", "--device", "cpu", "--quiet"]
CPU = torch.device("cpu")
ROW = {
    "what", "baseline", "milliseconds", "ratio", "images_per_second", "times", "peak_mib", "tflops"}  # fmt: skip


def median_ratio(row, other):
    (a, b), (c, d) = row["times"], other["times"]
    return (a / c + b / d) / 2


def run(capsys, *args):
    assert main(["bench", *args]) == 0
    return capsys.readouterr().out


def error(capsys, *args):
    assert main(["bench", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("what", "options", "rows"),
    [("attack", ["--steps", "1"], 5), ("cam", [], 5), ("train", ["--steps", "1", "--methods", "at,part,mart"], 6)],
)
def test_json_has_rows_machine_torch_and_settings(capsys, what, options, rows):
    found = json.loads(run(capsys, what, *TINY, *options, "--json"))
    assert found["bench"] == what
    assert found["torch"] == torch.__version__
    assert found["machine"].keys() == {"device", "threads"}
    assert (found["settings"]["model"], found["settings"]["batch_size"]) == ("tiny-cnn", 4)
    assert found["settings"]["repeats"] == 2
    assert found["notes"] == []
    assert len({row["what"] for row in found["rows"]}) == len(found["rows"]) == rows
    for row in found["rows"]:
        base = next(other for other in found["rows"] if other["what"] == row["baseline"])
        assert row.keys() == ROW
        assert len(row["times"]) == 2
        assert row["ratio"] == pytest.approx(median_ratio(base, row))
        assert row["images_per_second"] == pytest.approx(4000 / row["milliseconds"])
        assert row["peak_mib"] is None


@pytest.mark.parametrize("model", ["tiny-cnn", "vit-tiny"])
def test_scale_varies_batch_size_image_size_and_classes_and_reports_the_share_of_the_masks(capsys, model):
    args = ["--model", model, "--batch-size", "1", *TINY[4:]]
    found = json.loads(run(capsys, "scale", *args, "--steps", "1", "--json"))
    points = [(1, 32, 10), (4, 32, 10), (1, 64, 10), (1, 128, 10), (1, 32, 200), (1, 32, 1000)]
    names = [f"{n} images of {size} x {size}, {classes} classes" for n, size, classes in points]
    assert [row["what"] for row in found["rows"]] == [f"{m}, {name}" for name in names for m in ("at", "part")]
    for i, name in enumerate(names):
        at, part = found["rows"][2 * i : 2 * i + 2]
        assert at["images_per_second"] == pytest.approx(1000 * points[i][0] / at["milliseconds"])
        assert found["figures"][f"share of the masks, {name}"] == pytest.approx(1 - median_ratio(at, part))


def test_stream_compares_a_mapped_file_with_images_on_the_device(capsys):
    found = json.loads(run(capsys, "stream", *TINY, "--steps", "1", "--json"))
    assert [row["what"] for row in found["rows"]] == ["images on the device", "images from a mapped file"]
    assert found["figures"] == {"speed from a mapped file over that on the device": found["rows"][1]["ratio"]}


def test_autoattack_is_compared_with_its_authors_code(capsys, tmp_path, monkeypatch):
    pyautoattack, sizes = pytest.importorskip("pyautoattack"), []

    class Small(pyautoattack.AutoAttack):
        def run_standard_evaluation(self, x, y, *, batch_size):
            sizes.append(batch_size)
            return super().run_standard_evaluation(x, y, batch_size=batch_size)

    def small(model, device, *, eps, version, seed):
        return Small(model, eps=eps, version="custom", attacks=["apgd-ce"], seed=seed, device="cpu")

    monkeypatch.setattr(reference, "build", small)
    monkeypatch.setitem(VERSIONS, "standard", {"apgd-ce": apgd_search(steps=20)})
    config = recipes.shapes("at", epochs=1, ema=0.0)
    state = {f"model.{name}": tensor for name, tensor in models.build("tiny-cnn").state_dict().items()}
    atomic_write(tmp_path / "config.json", config.to_json())
    save_checkpoint(tmp_path / "checkpoints" / "best.safetensors", state, facts_of(config))
    found = json.loads(run(capsys, "autoattack", str(tmp_path), "--images", "8", "--device", "cpu", "--json"))
    theirs, ours = found["rows"]
    assert found["settings"] == {"run": str(tmp_path), "images": 8, "search": "fp32"}
    assert [row["baseline"] for row in found["rows"]] == [theirs["what"]] * 2
    assert ours["ratio"] == pytest.approx(theirs["milliseconds"] / ours["milliseconds"])
    figures = found["figures"]
    difference = figures["images robust under ours only"] - figures["images robust under the reference only"]
    assert figures["robust accuracy, ours"] - figures["robust accuracy, reference"] == pytest.approx(difference / 8)
    assert sizes == [250]  # its default
    assert not (tmp_path / "eval.json").exists()


def test_a_users_network_can_be_measured_and_a_note_says_if_it_is_not_folded(capsys, tmp_path, monkeypatch):
    (tmp_path / "nets_to_bench.py").write_text(
        "from pixelpart.models.tiny import TinyCNN\n\nclass Net(TinyCNN):\n"
        "    def trunk(self, x):\n        return super().trunk(x if x.mean() < 2 else 0 * x)\n\n"
        "def branching(k):\n    return Net(k)\n"
    )
    monkeypatch.chdir(tmp_path)
    name = "nets_to_bench:branching"
    found = json.loads(run(capsys, "cam", "--model", name, *TINY[2:], "--json"))
    assert found["settings"]["model"] == name
    assert found["notes"] == [f"{name} cannot be computed in bf16: this is fp32, and nothing is folded"]
    assert "'large'" in error(capsys, "cam", "--model", "nets_to_bench:large", *TINY[2:])


def test_every_method_has_its_own_baseline_and_the_table_a_line_for_each_row(capsys):
    text = run(capsys, "train", *TINY, "--steps", "1", "--methods", "at,part", "--precision", "fp32")
    head, *lines = text.splitlines()
    assert head.split() == ["ms", "ratio", "us/image", "images/s"]
    for line, name in zip(
        lines, ["at, eager fp32", "at, ours", "part, eager fp32, masks one by one", "part, ours"], strict=False
    ):
        assert line.startswith(name)
        assert "1.00x" in line or "ours" in name
    assert lines[4].startswith("time of part over at: ")
    assert "precision fp32" in lines[-1]


def test_the_table_shows_memory_if_it_was_measured():
    rows = [
        timing.BenchRow("at, ours", "at, ours", 10.0, 1.0, 12800.0, [10.0], peak_mib=1000.0, tflops=218.0),
        timing.BenchRow("part, ours", "at, ours", 10.4, 0.96, 12300.0, [10.4], peak_mib=1050.0),
    ]
    report = timing.BenchReport("train", {"steps": 10}, {"device": "a GPU"}, rows, notes=["a note"])
    add_mask_costs(report, ["at", "part"])
    text = str(report)
    assert text.splitlines()[0].split() == ["ms", "ratio", "us/image", "images/s", "peak", "MiB", "TFLOP/s"]
    assert "time of part over at: 1.040" in text
    assert "peak memory of part over at: 1.050" in text
    assert "a note" in text


def test_the_ways_take_turns_and_time_and_ratio_are_medians_of_the_rounds(monkeypatch):
    turns, clock = [], iter([9.0, 9.0, 1.0, 2.0, 8.0, 4.0, 3.0, 1.0])
    monkeypatch.setattr(timing, "milliseconds", lambda run, device, calls=1: run() or next(clock))
    makers = {name: lambda name=name: lambda: turns.append(name) for name in "ab"}
    bench = timing.Bench(timing.BenchReport("", {}, {}), CPU, 3, lambda line: None)
    a, b = bench.measure(makers, images=6)
    assert "".join(turns) == "abababab"
    assert (a.milliseconds, a.ratio, a.times) == (3.0, 1.0, [1.0, 8.0, 3.0])
    assert (b.milliseconds, b.ratio, b.images_per_second) == (2.0, 2.0, 3000.0)  # median of .5, 2 and 3, not 3 / 2


@pytest.mark.parametrize(("milliseconds", "calls"), [(12.0, 5), (1200.0, 1)])
def test_on_a_gpu_a_quick_function_is_called_several_times_per_round(monkeypatch, milliseconds, calls):
    monkeypatch.setattr(timing, "milliseconds", lambda run, device: milliseconds)
    assert timing.calls_per_round(print, torch.device("cuda")) == calls
    assert timing.calls_per_round(print, CPU) == 1


@pytest.mark.parametrize(("precision", "products"), [("bf16", "high"), ("fp32", "highest")])
def test_on_a_gpu_matrix_products_have_the_precision_of_training(monkeypatch, precision, products):
    monkeypatch.setattr("pixelpart.bench.timing.current", lambda device: nullcontext())
    monkeypatch.setattr("pixelpart.runtime.precision.current", lambda device: nullcontext())
    with timing.arithmetic(torch.device("cuda"), precision):
        assert torch.get_float32_matmul_precision() == products


def test_the_passes_of_a_step_are_those_of_the_algorithm():
    assert {method: passes(method, 10) for method in METHODS} == {
        "at": 23, "part": 24, "trades": 27, "part-t": 27, "mart": 26, "part-m": 27}  # fmt: skip


def test_resnet18_has_the_known_number_of_operations():
    assert forward_flops(models.build("resnet18")) == pytest.approx(2 * 0.5558e9, rel=0.01)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing"], "'nothing'"),
        (["train", "--methods", "at,fgsm"], "unknown method 'fgsm'; choose from at, mart, part, part-m"),
        (["train", "somewhere"], "bench train does not take a run folder"),
        (["autoattack"], "bench autoattack RUN"),
        (["attack", "--batch-size", "0"], "'0'"),
        (["cam", "--steps", "3"], "bench cam does not take --steps"),
        (["train", "--precision", "fp8"], "'fp8'"),
        (["attack", "--model", "resnet19"], "unknown model 'resnet19'"),
        (["cam", "--device", "abacus"], "'abacus'"),
    ],
)
def test_a_mistake_gives_a_short_message(capsys, args, message):
    assert message in error(capsys, *args)
