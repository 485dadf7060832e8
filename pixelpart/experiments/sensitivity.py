"""Does a smaller budget make a network sensitive where it is small? The share of |g| on the object, on `shapes`.

Training with budget b adds about sum b |g| to the loss, g = d CE / d x: a lower b makes sensitivity cheaper exactly
there. With 8/255 on the object and 4/255 elsewhere (oracle), and with CAM, less of |g| should lie on the object than
with a uniform budget of the same mean, with the inverted CAM more. Test: oracle - uniform, paired over seeds.
"""

from dataclasses import replace

from pixelpart.evaluation.statistics import t_test
from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.measures import AFTER_PGD, SENSITIVITY
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import DEMO, Arms, Scale, uniform_label
from pixelpart.experiments.common.tables import Table, signed
from pixelpart.experiments.frontier import FULL_DEMO, eight_four

OBJECT = 0.225  # the object's mean share of a training image


def arms(scale: Scale) -> Arms:
    """Three placements of 8|4, each followed by the uniform budget of its mean."""
    cams = eight_four(scale, ("inverted",))
    oracle = scale.config("part", eps_low=4 / 255, mask={"source": "object"})
    uniform = [scale.uniform((4 + 4 * area) / 255) for area in (OBJECT, scale.area, 1 - scale.area)]
    placed = {"8|4 object": oracle, **cams}
    pairs = zip(placed.items(), ((uniform_label(config.eps), config) for config in uniform), strict=True)
    return dict(arm for pair in pairs for arm in pair)


def analyse(results: Results, runner: Runner) -> list[Table]:
    """Each placement minus the uniform arm of its mean, with Student's interval over seeds that both have."""
    rows = []
    for arm, base in results.baselines:
        sides = [{run.seed: run.values for run in results.runs[label]} for label in (arm, base)]
        for column in (SENSITIVITY, AFTER_PGD):
            seeds = [s for s in sides[0] if s in sides[1] and all(column in side[s] for side in sides)]
            apart = [sides[0][seed][column] - sides[1][seed][column] for seed in seeds]
            if len(apart) > 1:
                mean, low, high, p = t_test(apart)
                predicted = (low > 0) if arm.endswith("inverted") else (high < 0)
                shown = f"{p:.3f}" if p >= 0.001 else "< 0.001"
                judged = "as predicted" if predicted else "against it" if low > 0 or high < 0 else "undecided"
                rows.append([f"{arm} - {base}", column, str(len(apart)), signed(mean, low, high), shown, judged])
                name = f"{arm} - {base}, {column}"
                results.analysis[name] = {"mean": mean, "interval": [low, high], "p": p, "differences": apart}
    head = ["difference", "of", "seeds", "mean [95 % interval]", "p", "prediction"]
    return [Table("Paired over seeds", head, rows)] if rows else []


EXPERIMENT = Experiment(
    arms=arms,
    attacks=("natural",),
    measures=("pixelpart.experiments.common.measures:sensitivity",),
    columns=lambda scale: ("natural", SENSITIVITY, AFTER_PGD),
    scales={"paper": replace(FULL_DEMO, name="paper", images=2000), "demo": replace(DEMO, keep=())},
    seeds={"paper": range(8), "demo": range(3)},
    baselines=lambda arms: list(zip(list(arms)[::2], list(arms)[1::2], strict=True)),
    data=("shapes",),
    analyse=analyse,
    plot=plots.intervals,
    notes=(
        "|g| on object: share of the gradient's size on the object over the object's share of the area; 1 if it does "
        "not matter where the object is. After PGD-10: at the end of PGD with ten steps.",
        "8|4 object: 8/255 on the object. Predicted: object and CAM below the uniform budget of the same mean, "
        "inverted above. The test is that of object on clean images, at .05.",
    ),
)
