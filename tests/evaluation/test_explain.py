import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

from pixelpart import attacks, data, masks
from pixelpart.cli.main import main
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.explain import explain, heat_and_budget, high, object_share, spread
from pixelpart.evaluation.image_set import ImageSet


def test_spread_takes_the_first_of_every_class_then_the_second():
    labels = torch.tensor([2, 0, 0, 1, 2, 0, 2])
    assert spread(labels, 7).tolist() == [1, 3, 0, 2, 4, 5, 6]
    assert spread(labels, 2).tolist() == [1, 3]


def test_the_files_hold_pictures_heat_budget_and_answers(run):
    written = explain(run, n=12, steps=2, objects=16)
    facts, tensors = json.loads(written.read_text()), load_file(run.dir / "explain.safetensors")
    x, y = data.load("shapes", split="test")
    index = [image["index"] for image in facts["images"]]
    assert [image["label"] for image in facts["images"]] == y[index].tolist() == [*range(10), 0, 1]
    picture = x[index].float() / 255
    assert tensors["picture"].equal(picture)
    heat = masks.heatmap(run.model, picture)
    assert tensors["heat"].shape == (12, 32, 32)
    assert torch.allclose(tensors["heat"], heat, atol=1e-5)
    assert tensors["budget"].equal(masks.budget(tensors["heat"], eps=8 / 255, eps_low=7 / 255))
    adversarial = tensors["adversarial"]
    assert (adversarial - picture).abs().max() <= 8 / 255 + 1e-6
    assert 0 <= adversarial.min() <= adversarial.max() <= 1
    for name, images in (("natural", picture), ("adversarial", adversarial)):
        said = run.model(images).softmax(1).max(1)
        assert [image[name]["class"] for image in facts["images"]] == said.indices.tolist()
        assert [image[name]["confidence"] for image in facts["images"]] == pytest.approx(said.values.tolist(), abs=1e-5)
    assert (facts["checkpoint"], facts["epoch"], facts["steps"], facts["eps"]) == ("best", 1, 2, 8 / 255)
    assert facts["classes"] == list(data.SETS["shapes"].classes)
    assert facts["object"]["n"] + facts["object"]["dead"] == 16


@pytest.mark.parametrize("eps", ["8/255", "2/255"])
def test_adversarial_answers_are_those_that_evaluate_counts_at_the_runs_eps(eps, make_run):
    run = make_run(eps=eps, eps_low="1/255", mask={"rule": "mean"})
    facts = json.loads(explain(run, n=10, steps=3, objects=8).read_text())
    images = max(image["index"] for image in facts["images"]) + 1
    right = evaluate(run, attacks=["pgd3"], eps=run.config.eps, images=images).flags["pgd3"]
    for image in facts["images"]:
        both = image["natural"]["class"] == image["label"] == image["adversarial"]["class"]
        assert both == right[image["index"]]


def test_twice_gives_the_same_bytes(run):
    first = {path.name: path.read_bytes() for path in (explain(run, n=3, steps=2, objects=8).parent).glob("explain.*")}
    assert len(first) == 2
    explain(run, n=3, steps=2, objects=8)
    assert first == {path.name: path.read_bytes() for path in run.dir.glob("explain.*")}


def test_without_a_rule_the_budget_is_eps_everywhere(make_run):
    run = make_run()
    facts = json.loads(explain(run, n=2, steps=1, objects=32).read_text())
    budget = load_file(run.dir / "explain.safetensors")["budget"]
    assert budget.equal(torch.full((2, 1, 32, 32), 8 / 255))
    assert facts["object"]["high_budget_on_object"] == pytest.approx(facts["object"]["object_area"])


def test_the_map_is_of_the_class_that_the_run_names(run):
    x, y = (part[:8] for part in data.load("shapes", split="test"))
    x, y = x.float() / 255, y
    config = Config(dataset="shapes", mask={"rule": "mean", "target": "label", "cam": "layercam"})
    heat, _ = heat_and_budget(run.model, x, y, config)
    assert heat.equal(masks.heatmap(run.model, x, method="layercam", target=y))


def test_high_is_where_the_rule_s_weight_is_above_one():
    heat = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = (heat > heat.mean((1, 2), keepdim=True))[:, None]
    for rule in ("mean", "soft"):
        config = Config(mask={"rule": rule})
        assert high(masks.budget(heat, eps=config.eps, eps_low=config.eps_low, rule=rule), config).equal(expected)


def test_a_budget_at_the_middle_is_high_as_it_is_in_training():
    config = Config(mask={"rule": "soft"}, eps=0.5, eps_low=0.25)
    assert high(torch.tensor([0.37, 0.375, 0.38]), config).tolist() == [False, True, True]


def test_the_command_line_makes_the_pictures(run, capsys):
    assert main(["explain", str(run.dir), "--checkpoint", "last", "--images", "3", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == f"{run.dir / 'explain.json'}\n"
    facts = json.loads((run.dir / "explain.json").read_text())
    assert (facts["checkpoint"], len(facts["images"])) == ("last", 3)
    assert load_file(run.dir / "explain.safetensors")["picture"].shape == (3, 3, 32, 32)
    assert main(["explain", str(run.dir), "--images", "0"]) == 2
    assert "cannot explain 0 images; choose from 1 to 2000" in capsys.readouterr().err


def test_object_shares_are_counted_by_hand_and_dead_maps_left_out(monkeypatch):
    heat = torch.zeros(3, 2, 2)
    heat[0] = torch.tensor([[1.0, 0.0], [0.0, 0.0]])  # all heat on the object
    heat[1] = torch.tensor([[0.2, 0.8], [0.0, 0.0]])  # a fifth on it; the third is dead
    where = torch.zeros(3, 2, 2, dtype=torch.bool)
    where[:, 0, 0] = True
    where[1, 1, 0] = True
    where[2] = True
    calls = iter(heat.split(2))
    monkeypatch.setattr(masks, "heatmap", lambda model, x, **settings: next(calls))
    pictures = ImageSet(torch.zeros(3, 3, 2, 2), torch.zeros(3, dtype=torch.int64), torch.device("cpu"))
    shares = object_share(None, pictures, where, Config(mask={"rule": "mean"}), batch_size=2)
    assert shares == {
        "n": 2, "dead": 1, "object_area": 3 / 8,
        "heat_on_object": pytest.approx(1.2 / 2), "high_budget_on_object": 1 / 2,
    }  # fmt: skip


@pytest.mark.parametrize("n", [0, 2001])
def test_n_is_checked(n, run):
    with pytest.raises(UserError, match="from 1 to 2000"):
        explain(run, n=n)


def test_of_fewer_images_than_it_wants_it_takes_all(run, monkeypatch):
    x, y = data.load("shapes", split="test")
    few = dataclasses.replace(data.SETS["shapes"], load=lambda split, root: (x[:5], y[:5]), masks=None)
    monkeypatch.setitem(data.SETS, "shapes", few)
    assert len(json.loads(explain(run, steps=1).read_text())["images"]) == 5


def test_no_attack_leaves_the_ball_of_a_smaller_eps(make_run):
    run = make_run(eps="4/255", eps_low="4/255")
    explain(run.dir, n=2, steps=5, step_size=0.1, objects=4)
    tensors = load_file(run.dir / "explain.safetensors")
    change = tensors["adversarial"] - tensors["picture"]
    assert 3.9 / 255 < change.abs().max() <= 4 / 255 + 1e-6
    assert attacks.project(tensors["adversarial"], tensors["picture"], 4 / 255).equal(tensors["adversarial"])
