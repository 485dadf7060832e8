"""Experiments: one short file per table or figure of the paper; `common` has what they share.

The module of an experiment, `train_iterations.py` for train-iterations, has `EXPERIMENT`; it is imported when needed.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Listed:
    """What `pixelpart experiment` lists: number in the paper, title, and the estimated time at each scale."""

    number: str
    title: str
    demo: str  # two CPU cores, from an empty folder
    paper: str  # one H200, three seeds, from an empty folder


EXPERIMENTS = {
    "table1": Listed("table 1", "Nine methods under four attacks", "5 min", "4 h"),
    "replication": Listed("table 1", "The paper's table as printed and as released, judged", "7 min", "2 h"),
    "adaptive": Listed("tables 2, 3", "Adaptive attacks through the model's mask", "5 min", "8 h"),
    "corruptions": Listed("table 4", "Common corruptions", "4 min", "3 h"),
    "gradients": Listed("appendix H.3", "Five behaviours of obfuscated gradients", "1 min", "1 h"),
    "generation": Listed("table 5", "PGD or MMA in training", "3 min", "3 h"),
    "cams": Listed("table 6", "Other class activation maps", "3 min", "1 h"),
    "iterations": Listed("table 7", "PGD with more steps", "3 min", "3 h"),
    "train-iterations": Listed("table 8", "More steps of PGD in training", "5 min", "3 h"),
    "cost": Listed("table 9", "Time and memory of masks", "6 min", "1 h"),
    "quadrants": Listed("figure 1", "Which region has the small budget", "7 min", "2 h"),
    "burn-in": Listed("-", "Length of the burn-in", "4 min", "3 h"),
    "eps-low": Listed("figure 4", "The smaller budget, and a search for it", "7 min", "4 h"),
    "heat-maps": Listed("figures 2, 5 to 7", "Heat maps by epoch", "1 min", "1 h"),
    "theory": Listed("lemma 1, theorem 1", "The 2-D toy: minimisers and maximisers", "5 s", "5 s"),
    "controls": Listed("-", "The mask next to its controls", "4 min", "3 h"),
    "frontier": Listed("-", "Distance from the curve of uniform budgets", "20 min", "4 h"),
    "study": Listed("-", "The study's first stage: PART and the curve", "5 min", "2 h"),
    "policies": Listed("-", "Other budget policies, each with its twin", "9 min", "4 h"),
    "sensitivity": Listed("-", "Share of the gradient on the object", "6 min", "1 h"),
    "damage": Listed("-", "The uniform eps that a budget's damage amounts to", "1 min", "5 min"),
}
