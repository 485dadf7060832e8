"""Experiments: one short file per table or figure of the paper; `common` has what they share.

The module of an experiment, `train_iterations.py` for train-iterations, has `EXPERIMENT`; it is imported when needed.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Listed:
    """What `pixelpart experiment` lists: number in the paper, title, and the time at each scale."""

    number: str
    title: str
    demo: str  # two CPU cores, from an empty folder
    paper: str  # one H200, three seeds, from an empty folder


EXPERIMENTS = {
    "table1": Listed("table 1", "Nine methods under four attacks", "", ""),
    "adaptive": Listed("tables 2, 3", "Adaptive attacks through the model's mask", "", ""),
    "corruptions": Listed("table 4", "Common corruptions", "", ""),
    "gradients": Listed("appendix H.3", "Five behaviours of obfuscated gradients", "", ""),
    "generation": Listed("table 5", "PGD or MMA in training", "", ""),
    "cams": Listed("table 6", "Other class activation maps", "", ""),
    "iterations": Listed("table 7", "PGD with more steps", "", ""),
    "train-iterations": Listed("table 8", "More steps of PGD in training", "", ""),
    "cost": Listed("table 9", "Time and memory of masks", "", ""),
    "quadrants": Listed("figure 1", "Which region has the small budget", "", ""),
    "burn-in": Listed("-", "Length of the burn-in", "", ""),
    "eps-low": Listed("figure 4", "The smaller budget, and a search for it", "", ""),
    "heat-maps": Listed("figures 2, 5 to 7", "Heat maps by epoch", "", ""),
    "theory": Listed("lemma 1, theorem 1", "The 2-D toy: minimisers and maximisers", "5 s", "5 s"),
    "controls": Listed("-", "The mask next to its controls", "", ""),
    "frontier": Listed("-", "Distance from the curve of uniform budgets", "", ""),
    "policies": Listed("-", "Other budget policies, each with its twin", "", ""),
}
