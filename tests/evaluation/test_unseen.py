"""Attacks with an eps of their own, and in other norms than l_inf."""

import json

import pytest
import torch

from pixelpart.attacks import COMBINED, SEARCHES
from pixelpart.cli.main import main
from pixelpart.errors import UserError
from pixelpart.evaluation.attack_spec import parse_attack
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.evaluate import evaluate


@pytest.mark.parametrize(
    ("name", "kind", "norm", "eps"),
    [
        ("pgd20", "pgd", "linf", None),
        ("pgd20@16/255", "pgd", "linf", 16 / 255),
        ("pgd20x5@1", "pgd", "linf", 1.0),
        ("apgd-ce@0.1", "apgd-ce", "linf", 0.1),
        ("autoattack@16/255", "autoattack", "linf", 16 / 255),
        ("apgd", "apgd", "linf", None),
        ("apgd-l2", "apgd-l2", "l2", 0.5),
        ("apgd-l2@128/255", "apgd-l2", "l2", 128 / 255),
        ("apgd-t-l2@2", "apgd-t-l2", "l2", 2.0),
        ("apgd-l1", "apgd-l1", "l1", 12.0),
        ("apgd-ce-l1@7.5", "apgd-ce-l1", "l1", 7.5),
    ],
)
def test_a_name_says_the_norm_and_may_say_eps(name, kind, norm, eps):
    attack = parse_attack(name)
    assert (attack.name, attack.kind, attack.norm, attack.eps) == (name, kind, norm, eps)
    assert attack.plain == name.partition("@")[0]


def test_the_parts_of_a_name_are_the_searches_that_it_stands_for():
    assert parse_attack("apgd-l1@3").parts == COMBINED["apgd-l1"]
    assert parse_attack("apgd-t-l2@3").parts == {"apgd-t-l2": SEARCHES["apgd-t-l2"]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("natural@8/255", "natural changes nothing, so it has no eps"),
        ("pgd20@", "'' is not a number or a fraction"),
        ("pgd20@eps", "'eps' is not a number or a fraction"),
        ("pgd20@1/0", "'1/0' is not a number or a fraction"),
        ("pgd20@8/255@9", "'8/255@9' is not a number or a fraction"),
        ("pgd20@8", "pgd20's eps 8 is not above 0 and at most 1; 8 of 255 levels is 8/255"),
        ("pgd20@0", "pgd20's eps 0 is not above 0"),
        ("apgd-l1@-1", "apgd-l1's eps -1 is not above 0$"),
        ("apgd-l2@nan", "'nan' is not a finite number"),
        ("apgd-l3@1", "unknown attack 'apgd-l3'; choose from .*apgd-l2, apgd-l1, .*NAME@EPS"),
        ("@1", "unknown attack ''"),
    ],
)
def test_what_is_wrong_with_an_eps_is_told(name, message):
    with pytest.raises(UserError, match=message):
        parse_attack(name)


@pytest.mark.parametrize(("name", "most"), [("apgd-ce-l2", 10.3923), ("apgd-ce-l1", 108)])
def test_a_ball_is_no_larger_than_the_cube_of_images(name, most, plane, pair):
    with pytest.raises(UserError, match=rf"{name}'s eps 109 is not above 0 and at most {most}"):
        evaluate(plane, data=pair, attacks=f"{name}@109", eps=0.1)


def test_robust_accuracy_of_a_plane_is_known_beforehand_in_every_norm(plane, pair):
    """By Hoelder the score w.x falls by eps times the dual norm of w: |w|_1, |w|_2 or max|w|, where no pixel ends."""
    x, y = pair
    score = (plane(x)[:, 0] * torch.where(y == 0, 1, -1)).detach()
    w = plane.linear.weight.detach()
    falls = {
        "pgd8": 0.02 * w.abs().sum(),
        "pgd8@0.04": 0.04 * w.abs().sum(),
        "apgd-ce-l2@0.3": 0.3 * w.norm(),
        "apgd-ce-l1@0.2": 0.2 * w.abs().max(),
    }
    result = evaluate(plane, data=pair, attacks=["natural", *falls], eps=0.02, step_size=0.01)
    for name, fall in falls.items():
        slack = 0.03 * fall if "l1" in name else 1e-4  # in l1 it may end with two pixels for one
        stands, right = score > fall, torch.from_numpy(result.flags[name])
        sure = (score - fall).abs() > slack
        assert torch.equal(right[sure], stands[sure])
        assert not (stands & ~right).any()
    assert result["pgd8@0.04"].correct < result["pgd8"].correct < result["natural"].correct
    assert result["apgd-ce-l2@0.3"].correct < result["natural"].correct


def test_an_entry_says_the_name_the_radius_and_the_norm(net, pair):
    result = evaluate(net, data=pair, attacks="pgd2@16/255,apgd-ce@0.01,apgd-ce-l2,apgd-l1@2", eps=0.03, images=4)
    told = [(entry["attack"], entry["eps"], entry["settings"].get("norm")) for entry in result.entries]
    assert told == [
        ("pgd2@16/255", 16 / 255, None),
        ("apgd-ce@0.01", 0.01, None),
        ("apgd-ce-l2", 0.5, "l2"),
        ("apgd-l1@2", 2.0, "l1"),
    ]
    assert [*result["apgd-l1@2"].entry["settings"]["parts"]] == ["apgd-ce-l1", "apgd-t-l1"]
    assert result["apgd-l1@2"].entry["settings"]["parts"]["apgd-ce-l1"]["steps"] == 103


def test_apgd_leaves_what_apgd_t_leaves_of_what_apgd_ce_leaves(net, pair):
    result = evaluate(net, data=pair, attacks="natural,apgd-ce,apgd-t,apgd", eps=2 / 255, images=16)
    ce, targeted, both = (result.flags[name] for name in ("apgd-ce", "apgd-t", "apgd"))
    assert (both == (ce & targeted)).all()
    assert 0 < both.sum() < result.flags["natural"].sum()


def test_both_parts_of_a_norm_break_at_least_what_the_first_does(net, pair):
    result = evaluate(net, data=pair, attacks="natural,apgd-ce-l2@0.2,apgd-l2@0.2", images=16)
    both, first = (result.flags[name] for name in ("apgd-l2@0.2", "apgd-ce-l2@0.2"))
    assert not (both & ~first).any()
    assert both.sum() < result.flags["natural"].sum()


def test_an_eps_of_its_own_is_what_steps_have_to_cross(plane, pair):
    result = evaluate(plane, data=pair, attacks="pgd2,pgd2@0.05", eps=0.01, step_size=0.01)
    assert result["pgd2"].warnings == []
    assert result["pgd2@0.05"].warnings == sanity.settings_warnings(0.05, {"steps": 2, "step_size": 0.01}) != []


def test_the_same_attack_under_another_name_is_not_run_again(net, pair, tmp_path):
    first = evaluate(net, data=pair, attacks="apgd-ce-l2,pgd2", eps=8 / 255, images=8, out=tmp_path)
    again = evaluate(net, data=pair, attacks="apgd-ce-l2@0.5,pgd2@8/255,pgd2@4/255", images=8, out=tmp_path)
    assert [again[name].reused for name in again] == [True, True, False]
    assert [entry["attack"] for entry in again.entries] == ["apgd-ce-l2@0.5", "pgd2@8/255", "pgd2@4/255"]
    assert (again.flags["pgd2@8/255"] == first.flags["pgd2"]).all()
    kept = json.loads((tmp_path / "eval.json").read_text())["entries"]
    assert sorted(entry["attack"] for entry in kept) == sorted([*first, *again])


def test_the_command_line_takes_them_all_in_one(run, capsys):
    names = "natural,pgd2,pgd2@16/255,apgd-ce-l2@0.1"
    assert main(["evaluate", str(run.dir), "--attacks", names, "--images", "4", "--device", "cpu", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["attack"] for entry in entries] == names.split(",")
    assert [entry["eps"] for entry in entries] == [0.0, 8 / 255, 16 / 255, 0.1]
    assert main(["evaluate", str(run.dir), "--attacks", "apgd-l1@0", "--images", "4", "--device", "cpu"]) == 2


def test_the_reference_runs_autoattack_at_an_eps_of_its_own(net, pair, monkeypatch):
    pytest.importorskip("pyautoattack")
    from pixelpart.evaluation import measuring

    asked = {}

    def under_reference(model, pictures, *, right, eps, version, **settings):
        asked.update(eps=eps, version=version)
        return right

    monkeypatch.setattr(measuring, "under_reference", under_reference)
    evaluate(net, data=pair, attacks="autoattack@16/255", images=4, engine="reference")
    assert asked == {"eps": 16 / 255, "version": "standard"}
    with pytest.raises(UserError, match="the engine reference runs autoattack, autoattack-plus alone, not apgd-l2"):
        evaluate(net, data=pair, attacks="apgd-l2", images=4, engine="reference")
