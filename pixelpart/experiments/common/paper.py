"""The paper's numbers that the experiments set next to ours, in %, with their standard deviations over three runs.

Copied from the paper's tables, with their deviations: the same cell has different ones in different tables.
"""

import math
import re

Number = tuple[float, float | None]  # mean and standard deviation, if the paper has one
Numbers = dict[str, dict[str, Number]]  # by arm, then by column

SAME_AS_IN_PAPER = {"apgd": "autoattack"}  # columns that the paper has under another name: the two differ by < .05
PAPER_SEEDS = 3
# Standard deviations between seeds of accuracies on CIFAR-10, in points, for the interval of ours - paper.
DEVIATIONS = {r"natural|.+-[1-5]": 0.30, r"(adaptive-)?(pgd|mma)\d+": 0.25, r"autoattack": 0.20}

FOUR = ("natural", "pgd20", "mma20", "autoattack")


def minus_paper(mean: float, seeds: int, column: str, paper: Number | None) -> tuple[float, float, float] | None:
    """Ours minus the paper's, ± 1.96 s sqrt(1/k + 1/3), s the deviation between seeds and k our seeds; else None."""
    name = SAME_AS_IN_PAPER.get(column, column)
    s = next((s for pattern, s in DEVIATIONS.items() if re.fullmatch(pattern, name)), None)
    if paper is None or s is None:
        return None
    apart, half = mean - paper[0], 1.96 * s * math.sqrt(1 / seeds + 1 / PAPER_SEEDS)
    return apart, apart - half, apart + half


def _rows(columns: tuple[str, ...], rows: dict[str, tuple[Number, ...]]) -> Numbers:
    return {arm: dict(zip(columns, numbers, strict=True)) for arm, numbers in rows.items()}


# Table 1
_CIFAR10 = _rows(FOUR, {
    "AT": ((82.58, 0.14), (43.69, 0.28), (41.80, 0.10), (41.63, 0.22)),
    "PART s=1": ((83.42, 0.26), (43.65, 0.16), (41.98, 0.03), (41.74, 0.04)),
    "PART s=10": ((83.77, 0.15), (43.36, 0.21), (41.83, 0.07), (41.41, 0.14)),
    "TRADES": ((78.16, 0.15), (48.28, 0.05), (45.00, 0.08), (45.05, 0.12)),
    "PART-T s=1": ((79.36, 0.31), (48.90, 0.14), (45.90, 0.07), (45.97, 0.06)),
    "PART-T s=10": ((80.13, 0.16), (48.72, 0.11), (45.59, 0.09), (45.60, 0.04)),
    "MART": ((76.82, 0.28), (49.86, 0.32), (45.42, 0.04), (45.10, 0.06)),
    "PART-M s=1": ((78.67, 0.10), (50.26, 0.17), (45.53, 0.05), (45.19, 0.04)),
    "PART-M s=10": ((80.00, 0.15), (49.71, 0.12), (45.14, 0.10), (44.61, 0.24)),
})  # fmt: skip
_SVHN = _rows(FOUR, {
    "AT": ((91.06, 0.24), (49.83, 0.13), (47.68, 0.06), (45.48, 0.05)),
    "PART s=1": ((93.14, 0.05), (50.34, 0.14), (48.08, 0.09), (45.67, 0.13)),
    "PART s=10": ((93.75, 0.07), (50.21, 0.10), (48.00, 0.14), (45.61, 0.08)),
    "TRADES": ((88.91, 0.28), (58.74, 0.53), (53.29, 0.56), (52.21, 0.47)),
    "PART-T s=1": ((91.35, 0.11), (59.33, 0.22), (54.04, 0.16), (53.07, 0.67)),
    "PART-T s=10": ((91.94, 0.18), (59.01, 0.13), (53.80, 0.20), (52.61, 0.24)),
    "MART": ((89.76, 0.08), (58.52, 0.53), (52.42, 0.34), (49.10, 0.23)),
    "PART-M s=1": ((91.42, 0.36), (58.85, 0.29), (52.45, 0.03), (49.92, 0.10)),
    "PART-M s=10": ((93.20, 0.22), (58.41, 0.20), (52.18, 0.14), (49.25, 0.13)),
})  # fmt: skip
_TINYIMAGENET = _rows(FOUR, {
    "AT": ((43.51, 0.13), (11.70, 0.08), (10.66, 0.11), (10.53, 0.14)),
    "PART s=1": ((44.87, 0.21), (11.93, 0.16), (10.96, 0.12), (10.76, 0.06)),
    "PART s=10": ((45.59, 0.14), (11.81, 0.10), (10.91, 0.08), (10.68, 0.10)),
    "TRADES": ((43.05, 0.15), (13.86, 0.10), (12.62, 0.16), (12.55, 0.09)),
    "PART-T s=1": ((44.31, 0.12), (14.08, 0.22), (13.01, 0.09), (12.84, 0.14)),
    "PART-T s=10": ((45.16, 0.10), (13.98, 0.15), (12.88, 0.12), (12.72, 0.08)),
    "MART": ((42.68, 0.22), (14.77, 0.18), (13.58, 0.13), (13.42, 0.16)),
    "PART-M s=1": ((43.75, 0.24), (14.93, 0.15), (13.76, 0.06), (13.68, 0.13)),
    "PART-M s=10": ((45.02, 0.16), (14.65, 0.14), (13.41, 0.11), (13.37, 0.15)),
})  # fmt: skip
TABLE1: dict[str, Numbers] = {"cifar10": _CIFAR10, "svhn": _SVHN, "tinyimagenet": _TINYIMAGENET}

# Table 2
_ADAPTIVE_PGD = _rows(tuple(f"adaptive-pgd{k}" for k in (20, 40, 60, 80, 100)), {
    "AT": ((37.67, 0.05), (36.98, 0.03), (36.86, 0.07), (36.81, 0.04), (36.72, 0.04)),
    "PART s=1": ((37.73, 0.11), (37.07, 0.08), (36.89, 0.12), (36.84, 0.10), (36.84, 0.07)),
    "TRADES": ((43.42, 0.13), (43.22, 0.11), (43.19, 0.12), (43.10, 0.08), (43.08, 0.06)),
    "PART-T s=1": ((43.98, 0.15), (43.75, 0.09), (43.73, 0.06), (43.68, 0.10), (43.61, 0.03)),
    "MART": ((44.60, 0.09), (44.19, 0.14), (44.05, 0.13), (43.98, 0.05), (43.96, 0.08)),
    "PART-M s=1": ((44.96, 0.21), (44.51, 0.17), (44.41, 0.12), (44.37, 0.06), (44.35, 0.09)),
})  # fmt: skip

# Table 3
_ADAPTIVE_MMA = _rows(tuple(f"adaptive-mma{k}" for k in (20, 40, 60, 80, 100)), {
    "AT": ((35.36, 0.10), (35.02, 0.05), (34.93, 0.09), (34.86, 0.06), (34.85, 0.07)),
    "PART s=1": ((35.67, 0.07), (35.35, 0.11), (35.29, 0.13), (35.29, 0.09), (35.17, 0.05)),
    "TRADES": ((40.14, 0.08), (39.89, 0.12), (39.93, 0.05), (39.87, 0.08), (39.82, 0.03)),
    "PART-T s=1": ((40.78, 0.13), (40.57, 0.11), (40.51, 0.08), (40.49, 0.05), (40.48, 0.02)),
    "MART": ((39.14, 0.06), (38.79, 0.13), (38.80, 0.10), (38.79, 0.05), (38.74, 0.08)),
    "PART-M s=1": ((40.56, 0.11), (40.26, 0.07), (40.23, 0.12), (40.21, 0.08), (40.20, 0.07)),
})  # fmt: skip

ADAPTIVE = {arm: _ADAPTIVE_PGD[arm] | _ADAPTIVE_MMA[arm] for arm in _ADAPTIVE_PGD}

# Table 4, CIFAR-10-C at severity 1; the rows of Gaussian noise and Gaussian blur are equal in the paper
_CORRUPTION_ARMS = ("AT", "PART s=10", "TRADES", "PART-T s=10", "MART", "PART-M s=10")
_CORRUPTED = {
    "gaussian_noise": (81.05, 82.46, 76.05, 79.42, 77.57, 79.51),
    "shot_noise": (81.11, 82.83, 75.91, 79.70, 77.66, 79.74),
    "impulse_noise": (79.42, 80.76, 74.59, 78.03, 76.12, 78.16),
    "speckle_noise": (81.42, 82.68, 75.97, 79.68, 77.63, 79.79),
    "defocus_blur": (81.07, 82.48, 76.06, 79.42, 77.59, 79.50),
    "glass_blur": (77.82, 78.20, 72.60, 76.26, 74.17, 76.57),
    "motion_blur": (79.30, 80.13, 74.28, 77.43, 75.35, 77.45),
    "zoom_blur": (78.87, 79.30, 73.27, 76.74, 74.10, 76.74),
    "gaussian_blur": (81.05, 82.46, 76.05, 79.42, 77.57, 79.51),
    "snow": (81.09, 82.01, 76.13, 79.43, 77.63, 79.34),
    "frost": (78.96, 80.04, 73.90, 76.60, 75.01, 75.80),
    "fog": (79.34, 80.18, 72.95, 77.15, 75.29, 78.26),
    "brightness": (81.89, 83.22, 76.87, 80.16, 78.60, 80.26),
    "spatter": (81.03, 82.03, 75.81, 79.31, 77.62, 79.39),
    "contrast": (77.09, 77.67, 70.08, 75.00, 71.90, 75.81),
    "elastic_transform": (77.32, 78.16, 71.99, 75.39, 73.13, 75.68),
    "pixelate": (81.09, 82.63, 76.05, 79.48, 77.45, 79.43),
    "jpeg_compression": (80.50, 81.91, 75.71, 79.09, 77.15, 79.29),
    "saturate": (78.01, 79.34, 73.59, 76.34, 74.70, 75.52),
}  # fmt: skip
CORRUPTIONS: Numbers = {
    arm: {f"{name}-1": (values[place], None) for name, values in _CORRUPTED.items()}
    for place, arm in enumerate(_CORRUPTION_ARMS)
}

# appendix H.3, PART with s = 1
GRADIENTS: Numbers = {
    "PART s=1": {
        "pgd1": (76.31, None),
        "pgd20": (43.65, None),
        "transfer": (59.17, None),
        "unbounded": (0.0, None),
        "random only": (0.0, None),
        "eps 16/255": (10.70, None),
        "eps 32/255": (0.49, None),
        "eps 64/255": (0.0, None),
    }
}

# Table 5: the attack that makes the training examples
GENERATION = _rows(FOUR, {
    "AT, pgd": ((82.58, 0.05), (43.69, 0.28), (41.80, 0.10), (41.63, 0.22)),
    "PART s=1, pgd": ((83.42, 0.26), (43.65, 0.06), (41.98, 0.03), (41.74, 0.04)),
    "AT, mma": ((81.76, 0.11), (44.76, 0.14), (42.31, 0.13), (42.04, 0.15)),
    "PART s=1, mma": ((83.55, 0.28), (44.99, 0.14), (42.50, 0.22), (42.09, 0.24)),
})  # fmt: skip

# Table 6
CAMS = _rows(FOUR, {
    "gradcam": ((83.42, 0.26), (43.65, 0.06), (41.98, 0.03), (41.74, 0.04)),
    "xgradcam": ((83.34, 0.18), (43.53, 0.08), (41.97, 0.05), (41.74, 0.02)),
    "layercam": ((83.38, 0.21), (43.67, 0.11), (42.07, 0.09), (42.03, 0.16)),
})  # fmt: skip

# Table 7
ITERATIONS = _rows(tuple(f"pgd{k}" for k in (10, 40, 60, 80, 100)), {
    "AT": ((44.83, 0.13), (43.00, 0.10), (42.83, 0.07), (42.81, 0.03), (42.81, 0.03)),
    "PART s=1": ((45.20, 0.17), (43.20, 0.14), (43.09, 0.09), (43.08, 0.10), (42.93, 0.07)),
    "TRADES": ((48.81, 0.21), (48.19, 0.13), (48.16, 0.15), (48.14, 0.08), (48.08, 0.04)),
    "PART-T s=1": ((49.41, 0.11), (48.65, 0.10), (48.64, 0.13), (48.64, 0.04), (48.62, 0.03)),
    "MART": ((49.98, 0.08), (49.66, 0.16), (49.66, 0.06), (49.54, 0.03), (49.47, 0.05)),
    "PART-M s=1": ((50.50, 0.19), (50.19, 0.15), (50.09, 0.04), (50.06, 0.05), (50.05, 0.02)),
})  # fmt: skip

# Table 8: PART with s = 1 and this many steps in training
TRAIN_ITERATIONS = _rows(FOUR, {
    "10 steps": ((83.42, 0.26), (43.65, 0.16), (41.98, 0.03), (41.74, 0.04)),
    "20 steps": ((83.44, 0.19), (43.64, 0.13), (42.02, 0.13), (41.82, 0.08)),
    "40 steps": ((83.36, 0.21), (43.82, 0.08), (42.09, 0.07), (41.86, 0.11)),
    "60 steps": ((83.30, 0.15), (44.02, 0.12), (42.18, 0.05), (41.91, 0.09)),
})  # fmt: skip

# Table 9: seconds of training and MB on two A100; which s is not stated
COST: Numbers = {
    arm: {"seconds": (3600.0 * h + 60 * m + s, None), "memory": (mb, None)}
    for arm, (h, m, s, mb) in {
        "AT": (1, 14, 37, 4608),
        "PART": (2, 11, 5, 4953),
        "TRADES": (1, 44, 19, 4697),
        "PART-T": (2, 46, 28, 5019),
        "MART": (1, 9, 23, 4627),
        "PART-M": (2, 7, 9, 4965),
    }.items()
}

# Figure 1: the region with 6/255, the others having 12/255
QUADRANTS: Numbers = {
    "ul": {"natural": (78.00, None), "pgd20": (47.69, None)},
    "br": {"natural": (76.77, None), "pgd20": (46.75, None)},
}
