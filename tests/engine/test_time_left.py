"""The time left weighs the epochs to come by their cost, and says "at least" while some of it is unknown."""

from types import SimpleNamespace

from pixelpart.config import Config
from pixelpart.engine.time_left import TimeLeft


def test_epochs_to_come_count_by_their_passes_and_then_by_their_measured_seconds():
    """10 epochs of 5 steps, 4 of them burn-in; the steps after it have 10 + 1 + 1 passes."""
    config = Config(epochs=10, burn_in={"epochs": 4, "eps": 0}, attack={"steps": 10}, mask={"rule": "mean"})
    burn_in, main = (
        SimpleNamespace(name=name, eps=eps, mask=mask) for name, eps, mask in [("b", 0, None), ("m", 1, 1)]
    )
    left = TimeLeft(SimpleNamespace(config=config, burn_in=burn_in, main=main), steps=5, end=10)
    assert left.text(0) == ""
    left.step_seconds["b"] = 0.1
    assert left.text(10) == f"at least {10 * 0.1 + 30 * 1.2:.0f} s left"
    left.measuring = 2.0
    assert left.text(10) == f"at least {10 * 0.1 + 30 * 1.2 + 8 * 2:.0f} s left"
    left.step_seconds["m"] = 2.0
    assert left.text(25) == f"about {25 * 2 + 5 * 2} s left"
    assert left.text(50) == ""
