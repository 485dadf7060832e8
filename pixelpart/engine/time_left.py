"""The time until the end of training, by what the remaining epochs cost."""

from pixelpart.engine.plan import Plan
from pixelpart.engine.step import Phase
from pixelpart.runtime.progress import duration


class TimeLeft:
    """Steps of burn-in and of the other epochs cost their measured seconds, and so does the measurement after an epoch.

    Before its first step, a phase is taken to cost the seconds of the other, by passes through the network.
    """

    def __init__(self, plan: Plan, steps: int, end: int) -> None:
        """`steps` of an epoch; training ends after epoch `end`."""
        self.plan, self.steps, self.end = plan, steps, end
        self.step_seconds: dict[str, float] = {}  # by phase
        self.measuring: float | None = None  # seconds after an epoch

    def text(self, step: int) -> str:
        """Such as "about 5 min left"; "at least" if something that is to come was not measured yet."""
        burn_in, main, total = self.plan.burn_in, self.plan.main, self.steps * self.end
        if not self.step_seconds or step == total:
            return ""
        border = min(self.steps * self.plan.config.burn_in.epochs, total)
        remaining = [(burn_in, max(border - step, 0)), (main, total - max(border, step))]
        known = next(phase for phase in (main, burn_in) if phase.name in self.step_seconds)
        pass_seconds = self.step_seconds[known.name] / self._passes(known)
        seconds = (self.measuring or 0.0) * (self.end - step // self.steps)
        for phase, n in remaining:
            seconds += n * self.step_seconds.get(phase.name, pass_seconds * self._passes(phase))
        unknown = self.measuring is None or any(n and phase.name not in self.step_seconds for phase, n in remaining)
        return f"{'at least' if unknown else 'about'} {duration(seconds)} left"

    def _passes(self, phase: Phase) -> int:
        """Passes forward and backward in a step: of each step of the attack, the loss, and the mask's map."""
        config = self.plan.config
        attack = config.attack.steps if phase.eps or phase.mask else 0
        return attack + 1 + (phase.mask is not None)
