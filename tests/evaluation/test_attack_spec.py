"""Names of attacks, their settings, and mistakes in them."""

import dataclasses
import math
import re

import pytest
import torch

from pixelpart.attacks import COMBINED, SEARCHES, VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.config import Config, MaskConfig
from pixelpart.errors import UserError
from pixelpart.evaluation import reference
from pixelpart.evaluation.attack_spec import ADAPTIVE, AUTOATTACKS, choices, parse_attack, resolve
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.images import ImageSet
from pixelpart.evaluation.store import hash_json
from pixelpart.evaluation.target import Target

HIGH, LOW = 12 / 255, 8 / 255
GIVEN = {"eps": 0.03, "step_size": 0.01, "seed": 4}
MASK = {"cam": "gradcam", "layer": "features", "rule": "mean", "target": "predicted"}


def fitted(name, *, classes=10, device="cpu", config=None, **changes):
    pictures = ImageSet(torch.zeros(1, 3, 6, 6), torch.zeros(1), torch.device(device))
    target = Target(torch.nn.Identity(), pictures, {}, None, config=config)
    return resolve(parse_attack(name, **GIVEN | changes), target, classes, say=lambda line: None)


def facts(name, **changes):
    return hash_json(fitted(name, **changes).key_facts)


@pytest.mark.parametrize(
    ("name", "kind", "steps", "restarts", "norm", "eps"),
    [
        ("natural", "natural", 0, 0, "linf", 0.0),
        ("pgd20", "pgd", 20, 1, "linf", 0.03),
        ("pgd20x5@1", "pgd", 20, 5, "linf", 1.0),
        ("mma7x2@16/255", "mma", 7, 2, "linf", 16 / 255),
        ("apgd-ce@0.1", "apgd-ce", 0, 0, "linf", 0.1),
        ("autoattack", "autoattack", 0, 0, "linf", 0.03),
        ("autoattack-plus@16/255", "autoattack-plus", 0, 0, "linf", 16 / 255),
        ("apgd", "apgd", 0, 0, "linf", 0.03),
        ("apgd-l2", "apgd-l2", 0, 0, "l2", 0.5),
        ("apgd-t-l2@2", "apgd-t-l2", 0, 0, "l2", 2.0),
        ("apgd-l1", "apgd-l1", 0, 0, "l1", 12.0),
        ("adaptive-pgd20", "adaptive-pgd", 20, 1, "linf", HIGH),
        ("adaptive-mma100x2", "adaptive-mma", 100, 2, "linf", HIGH),
        ("adaptive-in40x3@4/255", "adaptive-in", 40, 3, "linf", 4 / 255),
    ],
)
def test_a_name_gives_kind_steps_restarts_norm_and_eps(name, kind, steps, restarts, norm, eps):
    spec = parse_attack(name, **GIVEN)
    found = (spec.name, spec.kind, spec.steps, spec.restarts, spec.norm, spec.eps)
    assert found == (name, kind, steps, restarts, norm, eps)


def test_names_of_searches_give_their_searches_in_order():
    tables = {"autoattack": VERSIONS["standard"], "autoattack-plus": VERSIONS["plus"], **COMBINED}
    tables |= {name: {name: search} for name, search in SEARCHES.items()}
    for name, searches in tables.items():
        assert list(parse_attack(name).searches.items()) == list(searches.items())
        assert name in choices()


@pytest.mark.parametrize(
    "name",
    ["pgd", "pgd0", "pgd20x0", "pgd20x", "pgd-1", "PGD20", "fgsm", "", "pgd2 ", "pgd٣", "mma", "autoattack5", "square9",
     "apgd-l3@1", "@1", "adaptive", "adaptive-pgd", "adaptive-in0"],
)  # fmt: skip
def test_an_unknown_attack_is_reported_with_the_choices(name):
    expected = r"natural, pgdK, pgdKxR, mmaK, mmaKxR .*, adaptive-inK, apgd-ce, .*, autoattack-plus; NAME@EPS"
    with pytest.raises(UserError, match=rf"unknown attack .* choose from {expected}"):
        parse_attack(name)


@pytest.mark.parametrize("given", [None, 5, b"pgd20"])
def test_an_attack_is_given_by_name(given):
    with pytest.raises(UserError, match=f"attack {re.escape(repr(given))} is a {type(given).__name__}, not a name$"):
        parse_attack(given)
    name_it = r"not a name; name it by pp.attacks.ATTACKS\['mine'\] = pp.attacks.Attack\(function\)"
    with pytest.raises(UserError, match=f"attack own is a function, {name_it}"):
        parse_attack(own)


def own(model, x, y, budget, **settings):
    return x


def test_eps_may_be_written_as_a_fraction():
    assert parse_attack("pgd20", eps="8/255", step_size="1/255") == parse_attack(
        "pgd20", eps=8 / 255, step_size=1 / 255
    )


@pytest.mark.parametrize(
    ("name", "similar"),
    [("pgd", "pgd20"), ("pdg20", "pgd20"), ("PGD20x5", "pgd20x5"), ("autoatack", "autoattack"), ("mma", "mma20")],
)
def test_similar_names_are_suggested(name, similar):
    with pytest.raises(UserError, match=rf"unknown attack '{name}'; did you mean {similar}\b.*\? choose from natural"):
        parse_attack(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("natural@8/255", "natural changes no pixel and takes no eps"),
        ("pgd20@", "'' is not a number or a fraction"),
        ("pgd20@1/0", "'1/0' is not a number or a fraction"),
        ("pgd20@8", "pgd20's eps 8 is out of range: choose a number above 0 and at most 1; 8 of 255 levels is 8/255"),
        ("pgd20@0", "pgd20's eps 0 is out of range: choose a number above 0"),
        ("apgd-l1@-1", "apgd-l1's eps -1 is out of range: choose a number above 0$"),
        ("apgd-l2@nan", "'nan' is not a finite number"),
        ("adaptive-mma20@16/255", "adaptive-mma20 takes no eps; the paper fixes its budget, 12/255 and 8/255"),
    ],
)
def test_a_wrong_eps_in_a_name_is_reported(name, message):
    with pytest.raises(UserError, match=message):
        parse_attack(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"eps": eps}, "one number for all pixels") for eps in (torch.full((1, 1, 6, 6), 0.03), None, True)),
        ({"eps": "much"}, "eps 'much' is not a number or a fraction such as 8/255"),
        *(({"eps": eps}, "eps .* is out of range: .*at most 1") for eps in (0, -0.1, 1.01, 8, math.nan, math.inf)),
        ({"step_size": 0}, "step_size 0 is out of range"),
        ({"search": "fp16"}, "unknown search 'fp16'; did you mean bf16. choose from auto, bf16, fp32"),
        ({"engine": "theirs"}, "unknown engine 'theirs'; choose from own, reference"),
    ],
)
def test_wrong_settings_are_reported(change, message):
    with pytest.raises(UserError, match=message):
        parse_attack("pgd20", **GIVEN | change)


@pytest.mark.parametrize(("name", "most"), [("apgd-ce-l2", 10.3923), ("apgd-ce-l1", 108)])
def test_a_ball_that_contains_all_images_is_refused(name, most):
    with pytest.raises(UserError, match=rf"{name}'s eps 109 is out of range: .* at most {most}"):
        fitted(f"{name}@109")


def test_a_search_that_needs_three_classes_is_refused_for_two_before_any_attack_runs(plane, pair):
    with pytest.raises(UserError, match="apgd-dlr needs at least 3 classes, not 2"):
        evaluate(plane, data=pair, attacks="natural,apgd-dlr", progress=pytest.fail)


@pytest.mark.parametrize("name", [*SEARCHES, *COMBINED])
def test_the_reference_runs_only_autoattack(name):
    with pytest.raises(UserError, match=f"engine reference runs only autoattack, autoattack-plus, not {name}"):
        parse_attack(name, engine="reference")
    assert parse_attack("pgd20", engine="reference").engine == "own"


def test_auto_is_bf16_only_for_searches_on_a_gpu():
    found = {(name, d): fitted(name, device=d).search for name in ("autoattack", "pgd3") for d in ("cpu", "cuda")}
    assert found == {key: "bf16" if key == ("autoattack", "cuda") else "fp32" for key in found}
    assert fitted("pgd3", search="bf16").search == fitted("apgd-ce", search="bf16").search == "bf16"
    assert fitted("autoattack", search="bf16", engine="reference").search == "fp32"


def test_settings_are_those_of_eval_json():
    assert fitted("natural").settings == {}
    assert fitted("pgd20x5").settings == {"steps": 20, "step_size": 0.01, "restarts": 5}
    assert fitted("pgd2", search="bf16").settings["search"] == "bf16"
    searches = {"apgd-t-l2": {"steps": SEARCHES["apgd-t-l2"].steps, "targets": 9, "restarts": 1}}
    expected = {"engine": "own", "search": "fp32", "parts": searches, "norm": "l2"}
    assert fitted("apgd-t-l2").settings == expected
    steps = {"steps": 20, "step_size": 0.01, "restarts": 1}
    assert fitted("adaptive-pgd20").settings == steps | {"mask": MASK, "eps_low": LOW}
    assert fitted("adaptive-in20").settings == steps | {"mask": MASK}


# -- what the key of a result depends on


def test_no_two_attacks_have_the_same_key():
    names = ["natural", "pgd20", "pgd20x5", "mma20", "adaptive-in20", *SEARCHES, *COMBINED, *AUTOATTACKS]
    assert len({facts(name) for name in names}) == len(names)
    assert facts("pgd20@0.03") == facts("pgd20")
    assert facts("natural") == facts("natural", eps=0.5, seed=9, engine="reference", search="bf16")


@pytest.mark.parametrize("name", ["autoattack", "square", "pgd20", "adaptive-in20"])
def test_each_setting_changes_the_key(name):
    changes = [{}, {"eps": 0.04}, {"seed": 5}, {"search": "bf16"}]
    keys = {facts(name, **change) for change in changes}
    assert len(keys) == len(changes)
    assert (facts(name, step_size=0.02) in keys) == (name in SEARCHES or name in AUTOATTACKS)


def test_another_search_engine_or_release_changes_the_key(monkeypatch):
    keys = {facts("autoattack"), facts("autoattack", engine="reference")}
    for change in ({"steps": 50}, {"targets": 3}, {"restarts": 2}):
        search = apgd_search(**{"steps": 100, "targets": 9} | change)
        monkeypatch.setitem(VERSIONS, "standard", VERSIONS["standard"] | {"apgd-t": search})
        keys.add(facts("autoattack"))
    monkeypatch.setattr(reference, "release", lambda: "0.3.0")
    assert facts("autoattack", engine="reference") not in keys
    assert len(keys) == 5


def test_the_mask_of_the_run_changes_the_key_of_adaptive_attacks_only():
    def with_mask(name, **mask):
        return facts(name, config=Config(mask=MaskConfig(**mask)))

    other = {"source": "layercam", "layer": "layer3", "rule": "quantile:0.7", "target": "label"}
    for kind in ADAPTIVE:
        plain = with_mask(f"{kind}20", rule="mean")
        assert plain == facts(f"{kind}20") == with_mask(f"{kind}20") == with_mask(f"{kind}20", rule="mean", every=10)
        keys = {with_mask(f"{kind}20", **{"rule": "mean", name: value}) for name, value in other.items()}
        assert len({plain, *keys}) == 5
    assert with_mask("pgd20", rule="mean") == with_mask("pgd20", rule="zscore")


def test_specs_are_plain_values():
    spec = fitted("pgd20x5")
    assert dataclasses.replace(spec, seed=4) == spec
    assert dataclasses.replace(spec, seed=5) != spec


@pytest.mark.parametrize(
    ("name", "eps", "given", "expected"),
    [
        ("pgd20", 8, None, 2), ("mma20", 12, None, 2), ("pgd20", 4, None, 1), ("pgd20@1/255", 8, None, 0.25),
        ("pgd20@1/255", 8, 2 / 255, 2), ("adaptive-pgd20", 1, None, 2),
    ],
)  # fmt: skip
def test_steps_are_a_quarter_of_a_small_eps_unless_given(name, eps, given, expected):
    assert parse_attack(name, eps=eps / 255, step_size=given).step_size == expected / 255
