"""How certain an accuracy is."""

import math
from statistics import NormalDist

from pixelpart.errors import UserError


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The ends of Wilson's score interval for a share of `successes` in `n`.

    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n), p = successes/n, z the normal quantile (Wilson, 1927).
    """
    if not 0 <= successes <= n or n < 1:
        raise UserError(f"{successes} of {n} is not a share; choose 0 <= successes <= n and n >= 1")
    if not 0 < confidence < 1:
        raise UserError(f"confidence {confidence} is not between 0 and 1")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p, spread = successes / n, z * z / n
    centre, half = p + spread / 2, math.sqrt(spread * (p * (1 - p) + spread / 4))
    # for successes == n the formula gives 1 exactly, rounding does not
    return (centre - half) / (1 + spread), 1.0 if successes == n else (centre + half) / (1 + spread)
