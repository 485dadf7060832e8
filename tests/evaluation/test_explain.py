import dataclasses
import functools
import json

import pytest
import torch
from safetensors.torch import load_file

from checkpoints import facts_of
from pixelpart import data, masks, models
from pixelpart.cli.main import main
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.explain import (
    apply_run_policy,
    explain,
    object_shares,
    spread_over_classes,
)
from pixelpart.evaluation.images import ImageSet
from pixelpart.runs import save_checkpoint


def test_images_are_the_first_of_every_class_then_the_second():
    labels = torch.tensor([2, 0, 0, 1, 2, 0, 2])
    assert spread_over_classes(labels, 7).tolist() == [1, 3, 0, 2, 4, 5, 6]
    assert spread_over_classes(labels, 2).tolist() == [1, 3]


def test_the_files_hold_images_heat_budget_and_predictions(run):
    written = explain(run, n=12, steps=2, objects=16)
    facts, tensors = json.loads(written.read_text()), load_file(run.dir / "explain.safetensors")
    x, y = data.load("shapes", split="test")
    index = [image["index"] for image in facts["images"]]
    assert [image["label"] for image in facts["images"]] == y[index].tolist() == [*range(10), 0, 1]
    x = x[index].float() / 255
    assert tensors["picture"].equal(x)
    assert tensors["heat"].shape == (12, 32, 32)
    assert torch.allclose(tensors["heat"], masks.heatmap(run.model, x), atol=1e-5)
    assert tensors["budget"].equal(masks.budget(tensors["heat"], eps=8 / 255, eps_low=7 / 255))
    x_adv = tensors["adversarial"]
    assert 3.9 / 255 < (x_adv - x).abs().max() <= 8 / 255 + 1e-6
    assert 0 <= x_adv.min() <= x_adv.max() <= 1
    for name, images in (("natural", x), ("adversarial", x_adv)):
        confidence, predicted = run.model(images).softmax(1).max(1)
        assert [image[name]["class"] for image in facts["images"]] == predicted.tolist()
        assert [image[name]["confidence"] for image in facts["images"]] == pytest.approx(confidence.tolist(), abs=1e-5)
    assert (facts["checkpoint"], facts["epoch"], facts["steps"], facts["eps"]) == ("best", 1, 2, 8 / 255)
    assert facts["classes"] == list(data.SETS["shapes"].classes)
    assert facts["object"]["n"] + facts["object"]["dead"] == 16
    first = [path.read_bytes() for path in sorted(run.dir.glob("explain.*"))]
    explain(run, n=12, steps=2, objects=16)
    assert first == [path.read_bytes() for path in sorted(run.dir.glob("explain.*"))]


def test_kept_epochs_are_explained_on_the_same_images(run):
    built = {}
    for epoch in (1, 2, 10):  # the best is of epoch 1 too
        built[epoch] = models.build("tiny-cnn", generator=torch.Generator().manual_seed(100 + epoch)).eval()
        state = {f"model.{key}": value for key, value in built[epoch].state_dict().items()}
        save_checkpoint(run.folder.checkpoint(f"epoch-{epoch}"), state, facts_of(run.config, epoch))
    seen = []
    facts = json.loads(explain(run, n=6, steps=2, objects=4, progress=lambda *one: seen.append(one)).read_text())
    tensors = load_file(run.dir / "explain.safetensors")
    assert facts["epochs"] == [2, 10]
    x, adversarial = tensors["picture"], {"": tensors["adversarial"], "10": tensors["epoch-10.adversarial"]}
    assert torch.allclose(tensors["epoch-10.heat"], masks.heatmap(built[10], x), atol=1e-5)
    assert tensors["epoch-2.budget"].equal(masks.budget(tensors["epoch-2.heat"], eps=8 / 255, eps_low=7 / 255))
    for name, model in (("", run.model), ("10", built[10])):
        both = torch.stack([model(images).softmax(1) for images in (x, adversarial[name])], 1)
        prefix = f"epoch-{name}." if name else ""
        assert torch.allclose(tensors[f"{prefix}probabilities"], both, atol=1e-5)
    assert (
        tensors["object"].bool().equal(data.object_masks("shapes", split="test")[[i["index"] for i in facts["images"]]])
    )
    assert [one[1:] for one in seen] == [(6, 18, "epoch 1"), (12, 18, "epoch 2"), (18, 18, "epoch 10")]

    explain(run, n=6, steps=2, objects=4, batch_size=4, epochs=[10])
    in_batches = load_file(run.dir / "explain.safetensors")
    assert in_batches.keys() == {name for name in tensors if "epoch-2" not in name}
    assert all(torch.allclose(in_batches[name], tensors[name], atol=1e-4) for name in in_batches if "adv" not in name)
    with pytest.raises(UserError, match=r"no checkpoint 'epoch-3' in .*; choose from best, epoch-1, epoch-10, epoch-2"):
        explain(run, n=6, epochs=[3])


def test_adversarial_predictions_are_those_that_evaluate_counts(make_run):
    run = make_run(eps="2/255", eps_low="1/255", mask={"rule": "mean"})
    facts = json.loads(explain(run, n=10, steps=3, objects=8).read_text())
    images = max(image["index"] for image in facts["images"]) + 1
    correct = evaluate(run, attacks=["pgd3"], eps=run.config.eps, images=images).flags["pgd3"]
    for image in facts["images"]:
        both = image["natural"]["class"] == image["label"] == image["adversarial"]["class"]
        assert both == correct[image["index"]]


def test_without_a_rule_the_budget_is_eps_everywhere(make_run):
    run = make_run()
    facts = json.loads(explain(run, n=2, steps=1, objects=8).read_text())
    assert load_file(run.dir / "explain.safetensors")["budget"].equal(torch.full((2, 1, 32, 32), 8 / 255))
    assert facts["object"]["high_budget_on_object"] == pytest.approx(facts["object"]["object_area"])


def test_a_run_trained_without_an_attack_is_explained_under_the_default_attack(make_run, tmp_path):
    run = make_run(eps="0/255", eps_low="0/255")
    facts = json.loads(explain(run, n=2, steps=20, objects=8).read_text())
    tensors = load_file(run.dir / "explain.safetensors")
    assert facts["eps"] == 8 / 255
    assert (tensors["adversarial"] - tensors["picture"]).abs().max() > 7.9 / 255
    assert not tensors["budget"].any()
    assert main(["explain", str(run.dir), "--images", "2"]) == 0  # which also draws explain.png
    assert main(["report", str(run.dir), "--out", str(tmp_path / "report.html")]) == 0


def test_images_given_as_tensors_are_refused(run):
    with pytest.raises(UserError, match="explain takes data by name, not as tensors"):
        explain(run, data=data.load("shapes", split="test"))


def test_the_map_explains_the_class_that_the_config_names(run):
    x, y = (part[:4] for part in data.load("shapes", split="test"))
    config = Config(dataset="shapes", mask={"rule": "mean", "target": "label", "source": "layercam"})
    heat, *_ = masks.apply_policy(run.model, x.float() / 255, y, config.mask, eps=config.eps, eps_low=config.eps_low)
    assert heat.equal(masks.heatmap(run.model, x.float() / 255, method="layercam", target=y))


@pytest.mark.parametrize("source", ["gradient:2", "margin", "centre", "quadrant:ul", "blobs", "object"])
def test_every_source_can_be_explained_and_reported(make_run, source, tmp_path):
    rule = "rank" if source == "margin" else "mean"
    run = make_run(mask={"source": source, "rule": rule, "control": "blobs", "mean": "6/255"}, eps_low="2/255")
    facts = json.loads(explain(run, n=4, steps=1, objects=16).read_text())
    tensors = load_file(run.dir / "explain.safetensors")
    assert (tensors["heat"].shape, tensors["budget"].shape) == ((4, 32, 32), (4, 1, 32, 32))
    assert 0 <= tensors["heat"].min() <= tensors["heat"].max() <= 1
    torch.testing.assert_close(tensors["budget"].mean((1, 2, 3)), torch.full((4,), 6 / 255))
    assert facts["object"]["n"] == 16
    index = [image["index"] for image in facts["images"]]
    if source == "object":
        assert torch.equal(tensors["heat"].bool(), data.object_masks("shapes", split="test")[index])
    if source == "margin":
        assert sorted(tensors["heat"][:, 0, 0].tolist()) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    first = (run.dir / "explain.safetensors").read_bytes()
    explain(run, n=4, steps=1, objects=16)
    assert (run.dir / "explain.safetensors").read_bytes() == first  # the noise is seeded
    assert main(["report", str(run.dir), "--out", str(tmp_path / "report.html")]) == 0


def test_object_shares_equal_hand_counted_ones_without_dead_maps(monkeypatch):
    heat = torch.zeros(3, 2, 2)
    heat[0] = torch.tensor([[1.0, 0.0], [0.0, 0.0]])  # all heat on the object
    heat[1] = torch.tensor([[0.2, 0.8], [0.0, 0.0]])  # a fifth on it; the third is dead
    objects = torch.zeros(3, 2, 2, dtype=torch.bool)
    objects[:, 0, 0] = True
    objects[1, 1, 0] = True
    objects[2] = True
    calls = iter(heat.split(2))
    monkeypatch.setattr(masks.BudgetPolicy, "maps", lambda policy, inputs: next(calls))
    monkeypatch.setattr(masks.BudgetPolicy, "heat", lambda policy, maps, size: maps)
    pictures = ImageSet(torch.zeros(3, 3, 2, 2), torch.zeros(3, dtype=torch.int64), torch.device("cpu"))
    pictures_of = functools.partial(apply_run_policy, None, Config(mask={"rule": "mean"}), objects, seed=0)
    shares = object_shares(pictures_of, pictures, objects, batch_size=2)
    assert shares == {
        "n": 2, "dead": 1, "object_area": 3 / 8,
        "heat_on_object": pytest.approx(1.2 / 2), "high_budget_on_object": 1 / 2,
    }  # fmt: skip


def test_the_command_writes_the_files(run, capsys, monkeypatch):
    x, y = (part[:5] for part in data.load("shapes", split="test"))
    few = dataclasses.replace(data.SETS["shapes"], load=lambda split, *_: (x, y), masks=None)
    monkeypatch.setitem(data.SETS, "shapes", few)
    command = ["explain", str(run.dir), "--checkpoint", "last", "--images", "3", "--epochs", "none", "--device", "cpu"]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{run.dir / 'explain.json'}\n{run.dir / 'explain.png'}\n"
    facts = json.loads((run.dir / "explain.json").read_text())
    assert (facts["checkpoint"], len(facts["images"])) == ("last", 3)
    assert load_file(run.dir / "explain.safetensors")["picture"].shape == (3, 3, 32, 32)
    assert len(json.loads(explain(run, steps=1).read_text())["images"]) == 5  # all of them, since fewer than 12
    assert main(["explain", str(run.dir), "--images", "6"]) == 2
    assert "cannot explain 6 images; choose from 1 to 5" in capsys.readouterr().err
