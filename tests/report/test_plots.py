"""Which plots are drawn, what they are of, and what their captions say."""

import itertools

import numpy as np
import pytest

from pixelpart import recipes
from pixelpart.config import Config
from pixelpart.experiments.common.plots import _limits
from pixelpart.experiments.common.results import Cell
from pixelpart.report.arms import collect, find_arms, uniform_arms
from pixelpart.report.formatting import short
from pixelpart.report.plots import plot_section
from pixelpart.report.run import read_runs

EVIL = "<script>alert(1)</script>$x_{$&"


def flags(p, n=200, seed=0):
    return np.random.default_rng(seed).permutation(n) < round(p * n)


def plots(*folders):
    return {plot.name: plot for plot in plot_section(collect(find_arms(read_runs(folders))))["plots"]}


def at(seed=0, eps="8/255", **changes):
    return recipes.RECIPES["shapes-at"](seed=seed, epochs=3, eps=eps, **changes)


def part(seed=0):
    return recipes.RECIPES["shapes-part"](seed=seed, epochs=3, burn_in={"epochs": 1})


# -- which results are compared


def test_seeds_of_a_method_are_one_arm_with_the_mean_of_its_runs(measured):
    folders = [
        measured(f"at-{s}", {"natural": flags(p), "pgd20": flags(p / 2)}, config=at(s))
        for s, p in enumerate((0.8, 0.6))
    ]
    folders.append(measured("part", {"natural": flags(0.5), "pgd20": flags(0.3)}, config=part()))
    arms = find_arms(read_runs(folders))
    assert [(arm.label, arm.seeds, arm.place) for arm in arms] == [("at", "0, 1", 0), ("part", "0", 2)]
    alt = plots(*folders)["plane"].alt
    assert alt == "Natural accuracy and accuracy under PGD-20 at 8/255, in %: at 70.0 and 35.0; part 50.0 and 30.0"


def test_arms_whose_folders_share_no_name_are_named_by_the_fields_that_differ(measured):
    runs = {"f3": at(0), "09": at(1), "4a": at(0, "4/255"), "b7": at(1, "4/255")}
    folders = [measured(name, {"natural": flags(0.5)}, config=config) for name, config in runs.items()]
    assert [arm.label for arm in find_arms(read_runs(folders))] == ["eps=8/255", "eps=4/255"]


def test_the_plane_shows_whole_intervals_of_arms_that_lie_close_together():
    cells = [Cell([0, 1], [40.0, 46.0], mean, (mean - 8, mean + 8)) for mean in (43.0, 43.3)]
    low, high = _limits(cells)
    assert low < 35
    assert high > 51.3


def test_long_labels_keep_their_end():
    start = "eps=8/255 eps_low=4/255 mask.rule=mean mask.source=gradcam mask.control="
    labels = [short(start + control) for control in ("flat", "inverted", "none")]
    assert len(set(labels)) == 3
    assert {len(label) for label in labels} == {52}


def test_an_attack_with_its_own_eps_is_the_same_as_with_the_option(measured):
    one = measured("a", {"natural": flags(0.8), "pgd20@4/255": flags(0.6)})
    other = measured("b", {"natural": flags(0.8), "pgd20": flags(0.5)}, config=part(), eps=4 / 255)
    found = collect(find_arms(read_runs([one, other])))
    assert [column.name for column in found.columns.values()] == ["natural", "PGD-20 at 4/255"]


def test_runs_measured_on_other_images_or_checkpoints_are_left_out(measured):
    folders = [measured(f"at-{s}", {"natural": flags(0.8), "pgd20": flags(0.5)}, config=at(s)) for s in range(3)]
    folders.append(measured("at-3", {"natural": flags(0.1, n=50), "pgd20": flags(0.1)}, config=at(3)))
    folders.append(measured("at-4", {"natural": flags(0.1)}, config=at(4), checkpoint="last"))
    found = collect(find_arms(read_runs(folders)))
    assert found.context == "best checkpoint, test images of shapes"
    natural = found.results.cell("at", "natural")
    assert natural.values == [80.0] * 3


def test_the_attack_of_the_plane_has_the_usual_eps_most_runs_and_the_lowest_accuracy(measured):
    results = {"natural": flags(0.8), "pgd10": flags(0.5), "pgd20": flags(0.4), "pgd20@16/255": flags(0.1)}
    one, two = measured("a", results | {"autoattack": flags(0.3)}), measured("b", results, config=part())
    found = collect(find_arms(read_runs([one, two])))
    assert found.robust.name == "PGD-20 at 8/255"


def test_uniform_arms_differ_in_eps_only_but_may_share_a_burn_in(measured):
    configs = {"U4": at(eps="4/255", burn_in={"epochs": 1, "eps": "8/255"}), "U6": at(eps="6/255"), "U8": at()}
    others = {"long": at(eps="2/255", batch_size=32), "part": part()}
    results = {"natural": flags(0.8), "pgd20": flags(0.5)}
    folders = [measured(name, results, config=config) for name, config in (configs | others).items()]
    runs = read_runs(folders)
    assert uniform_arms(find_arms(runs)) == {"U4": "4/255", "U6": "6/255", "U8": "8/255"}
    assert uniform_arms(find_arms(runs[1:])) == {}  # two points are no curve


# -- which plots are drawn


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ({"natural": flags(0.8), "pgd20": flags(0.5)}, set()),
        ({"natural": flags(0.8), "pgd20": flags(0.5), "pgd20@4/255": flags(0.6)}, {"eps-0"}),
        ({"pgd20@2/255": flags(0.8), "pgd20@4/255": flags(0.6)}, {"eps-0"}),
        ({"pgd10": flags(0.5), "pgd50": flags(0.4)}, {"steps-0"}),
        ({"pgd10": flags(0.5), "pgd50@4/255": flags(0.4)}, set()),
        ({"pgd10": flags(0.5), "pgd20x5": flags(0.4)}, set()),
        ({"autoattack": flags(0.5), "apgd": flags(0.6)}, set()),
    ],
)  # fmt: skip
def test_a_single_run_has_the_plots_that_its_results_allow(measured, results, expected):
    assert plots(measured("a", results)).keys() == expected


def test_lines_over_eps_start_at_natural_accuracy(measured):
    plot = plots(measured("a", {"natural": flags(0.9), "pgd20": flags(0.5), "pgd20@4/255": flags(0.7)}))["eps-0"]
    assert plot.alt == "Accuracy over the eps of PGD-20, in %: a 90.0 at 0, 70.0 at 4, 50.0 at 8"
    assert plot.about == "0 is natural accuracy. Bars: 95 % intervals, over images; 1 seed an arm; n = 200 images."


@pytest.mark.parametrize("other", ["pgd20@8/255", "pgd5"])
def test_all_points_of_a_line_are_accuracies_on_the_same_images(measured, other):
    results = {other: flags(0.9, n=400), "pgd10": flags(0.5), "pgd20": flags(0.4), "pgd50": flags(0.3)}
    plot = plots(measured("a", results))["steps-0"]
    assert plot.alt == "Accuracy over the steps of PGD at 8/255, in %: a 50.0 at 10, 40.0 at 20, 30.0 at 50"
    assert plot.about.endswith("n = 200 images.")


def test_spread_needs_two_seeds_and_shows_each(measured):
    results = [{"natural": flags(p), "pgd20": flags(p / 2)} for p in (0.8, 0.6)]
    folders = [measured(f"at-{seed}", found, config=at(seed)) for seed, found in enumerate(results)]
    assert "seeds-0" not in plots(folders[0])
    found = plots(*folders)
    assert found["seeds-1"].alt == "accuracy under PGD-20 at 8/255 by seed, in %: at 40.0, 30.0"
    assert "over seeds and images; 2 seeds an arm; n = 200 images" in found["seeds-1"].about


@pytest.mark.parametrize(
    ("seeds", "says"), [(1, "one seed an arm gives no band"), (2, "the band is its 95 % interval")]
)
def test_the_uniform_curve_has_a_band_if_every_arm_has_two_seeds(measured, seeds, says):
    folders = []
    for level, s in itertools.product((4, 6, 8), range(seeds)):
        results = {"natural": flags(0.9 - level / 20, seed=s), "pgd20": flags(0.3 + level / 50, seed=s)}
        folders.append(measured(f"U{level}-{s}", results, config=at(s, f"{level}/255")))
    plot = plots(*folders)["plane"]
    assert says in plot.about
    assert ("fill-opacity: 0.2" in plot.svg) == (seeds > 1)
    assert all(f">{level}/255<" in plot.svg for level in (4, 6, 8))
    alone = [f for f in folders if not f.name.startswith("U6")]
    assert "Grey line" not in plots(*alone)["plane"].about


def test_accuracy_by_class_counts_the_images_of_each_class(measured):
    labels = np.repeat([0, 1, 2], [100, 60, 40])
    right = np.arange(200) % 2 == 0  # half of each class
    robust = right & (labels != 1)
    run = measured("a", {"natural": right, "pgd20": robust}, labels=labels)
    found = plots(run)
    assert found["class-natural"].alt == "Natural accuracy by class, in %: a: disc 50, crescent 50, ring 50"
    assert found["class-robust"].alt.endswith(": a: disc 50, crescent 50, ring 0")  # the hardest is the last
    assert "A class has 40 to 100 of them." in found["class-robust"].about
    for path in (run / "eval").glob("labels-*"):
        path.unlink()
    assert plots(run) == {}


def test_a_class_of_one_image_has_no_interval_over_seeds(measured):
    labels = np.array([0] * 9 + [1])
    folders = [measured(f"at-{s}", {"pgd20": flags(0.5, n=10, seed=s)}, config=at(s), labels=labels) for s in range(2)]
    assert "A class has 1 to 9 of them." in plots(*folders)["class-robust"].about


def test_arms_without_a_column_are_left_out_of_its_classes(measured):
    labels = np.arange(200) % 2
    both = {"natural": flags(0.8), "pgd20": flags(0.5)}
    one, two = measured("a", both, labels=labels), measured("c", both, config=at(eps="4/255"), labels=labels)
    last = measured("b", {"pgd20": flags(0.4)}, config=part(), labels=labels)
    found = plots(one, two, last)
    assert "; b: " in found["class-robust"].alt
    assert "; b: " not in found["class-natural"].alt
    assert plots(one, last).keys() == {"class-robust"}  # one arm of two shows no difference


def test_of_many_classes_the_hardest_are_shown(measured):
    labels = np.arange(300) % 30
    plot = plots(measured("a", {"pgd20": labels < 15}, labels=labels))["class-robust"]
    assert plot.about.startswith("The 20 classes of 30 with the lowest accuracy. ")
    assert "class 29 0" in plot.alt


def test_captions_say_what_single_runs_are_about(measured):
    results = {"natural": flags(0.8), "pgd20": flags(0.5)}
    one, two, three = (measured(f"a{k}", results, config=at(eps=f"{k}/255")) for k in (4, 6, 8))
    seed = measured("b", results, config=at(1))

    def about(*folders):
        return plot_section(collect(find_arms(read_runs(folders))))["plots_about"]

    assert about(one).endswith("images of shapes.")
    assert about(one, two).endswith("about these two models, not about the methods.")
    assert about(one, two, three).endswith("One run each: this is about these models, not about the methods.")
    assert about(one, three, seed).endswith("An arm with one seed is about that model, not about the method.")


def test_text_in_plots_is_escaped_and_is_no_formula(measured, page):
    labels = np.arange(200) % 2
    config = Config(recipe=EVIL, dataset=EVIL, classes=[EVIL, "b"], num_classes=2, epochs=3)
    results = {"natural": flags(0.8), "pgd10": flags(0.5), "pgd20": flags(0.4), EVIL: flags(0.3)}
    folders = [
        measured(f"<b>$\\frac{{{s}", results, config=config.model_copy(update={"seed": s}), labels=labels)
        for s in (0, 1)
    ]
    found = page(*folders)
    assert not found.all("script")
    texts = [text.text for text in found.all("text")]
    assert any(text.startswith("<script>a") for text in texts)
    assert {figure.attrs["class"] for figure in found.all("figure", "plot")} >= {
        "plot plot-class-robust",
        "plot plot-steps-0",
    }
