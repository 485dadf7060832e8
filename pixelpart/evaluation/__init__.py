"""How far a model can be trusted: accuracy under attack, with intervals, kept so that nothing stale is reused."""

from pixelpart.evaluation.statistics import wilson
from pixelpart.evaluation.suite import Outcome, Result, evaluate, parse_attack

__all__ = ["Outcome", "Result", "evaluate", "parse_attack", "wilson"]
