"""Which pixels matter, and how much budget each gets: source -> map -> rule -> share -> control -> scale -> budget.

A new map, source, rule or control is a function and an entry in a table of its file: CAMS and ROLLOUTS in maps.py,
SOURCES in sources.py, RULES and CONTROLS in rules.py.
"""

from pixelpart.masks.maps import CAMS, MAPS, ROLLOUTS, attention_map, cam, features_cam, heatmap, pooled_cam, upscale
from pixelpart.masks.policy import AppliedPolicy, BudgetPolicy, apply_policy, budget, budget_policy
from pixelpart.masks.rules import BLOB_GRID, CONTROLS, RULES, draw_blobs, is_dead, parse_rule
from pixelpart.masks.sources import SOURCES, CleanPass, Source, SourceInputs, parse_source

__all__ = [
    "BLOB_GRID",
    "CAMS",
    "CONTROLS",
    "MAPS",
    "ROLLOUTS",
    "RULES",
    "SOURCES",
    "AppliedPolicy",
    "BudgetPolicy",
    "CleanPass",
    "Source",
    "SourceInputs",
    "apply_policy",
    "attention_map",
    "budget",
    "budget_policy",
    "cam",
    "draw_blobs",
    "features_cam",
    "heatmap",
    "is_dead",
    "parse_rule",
    "parse_source",
    "pooled_cam",
    "upscale",
]


def __dir__() -> list[str]:
    return __all__
