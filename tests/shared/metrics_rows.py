"""Rows of metrics.jsonl."""


def metrics_row(epoch, **changes):
    return {
        "epoch": epoch, "phase": "plain", "loss": 2 / epoch, "lr": 0.1, "natural": 0.5, "pgd": 0.3, "robust_ce": 1.5,
        "measured_on": "held-out", "train_natural": 0.6, "train_pgd": 0.35, "budget_mean": 7.5 / 255,
        "high_fraction": 0.4, "dead_cams": 0, "damage": 0.2, "seconds": 2.0, "images_per_second": 900.0,
    } | changes  # fmt: skip
