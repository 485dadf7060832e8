"""Run folders on disk in the formats of evaluation and engine."""

import hashlib
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from safetensors.numpy import save_file

import metrics_rows
from pixelpart import recipes
from pixelpart.config import default_step_size, parse_fraction
from pixelpart.evaluation.statistics import wilson
from pixelpart.evaluation.store import fingerprint
from pixelpart.report import curves, write_report

CLASSES = ("disc", "ring", "square")
VOID = {"meta", "link", "img", "br", "input", "line", "rect", "path", "use"}


def _entry(attack="pgd20", accuracy=0.43, **changes):
    step_size = default_step_size(changes.get("eps", 8 / 255))
    steps = {} if attack == "natural" else {"settings": {"steps": 20, "step_size": step_size, "restarts": 1}}
    n = changes.get("n", 1000)
    return {
        "attack": attack, "checkpoint": "best", "epoch": 3, "weights": "averaged", "dataset": "shapes", "split": "test",
        "accuracy": accuracy, "interval": [accuracy - 0.03, accuracy + 0.03], "correct": round(accuracy * n), "n": n,
        "eps": 8 / 255, "settings": {}, "seed": 0, "precision": "fp32", "seconds": 1.25, "machine": "two cores",
        "flags": "eval/ab.npy", "key": "ab",
    } | steps | changes  # fmt: skip


def _explained(n=2, **changes):
    images = [
        {
            "index": 10 + k,
            "label": 0,
            "natural": {"class": 0, "confidence": 0.91},
            "adversarial": {"class": 1, "confidence": 0.62},
        }
        for k in range(n)
    ]
    return {
        "schema_version": 1, "checkpoint": "best", "epoch": 3, "eps": 8 / 255, "steps": 20,
        "classes": list(CLASSES), "images": images, "object": None,
    } | changes  # fmt: skip


def _arrays(n=2, height=4, width=4, *, channels=1, colours=3, epochs=()):
    """`channels` of the budget, `colours` of the pictures; arrays of kept epochs follow those of the checkpoint."""
    random = np.random.default_rng(0)
    picture = random.random((n, colours, height, width), dtype=np.float32)
    found = {"picture": picture}
    for prefix in ("", *(f"epoch-{epoch}." for epoch in epochs)):
        heat = random.random((n, height, width), dtype=np.float32)
        budget = np.where(heat[:, None].repeat(channels, 1) > 0.5, 8 / 255, 7 / 255).astype(np.float32)
        sign = np.sign(random.standard_normal(picture.shape))
        found[f"{prefix}heat"], found[f"{prefix}budget"] = heat, budget
        found[f"{prefix}adversarial"] = np.clip(picture + budget * sign, 0, 1).astype(np.float32)
    return found


@pytest.fixture
def entry():
    """Makes an entry of eval.json."""
    return _entry


@pytest.fixture
def metrics_row():
    """Makes a line of metrics.jsonl."""
    return metrics_rows.metrics_row


@pytest.fixture
def explained():
    """Makes the content of explain.json."""
    return _explained


@pytest.fixture
def arrays():
    """Makes the arrays of explain.safetensors."""
    return _arrays


ALL_PANELS = curves.PANELS


@pytest.fixture(autouse=True)
def _no_panels(monkeypatch):
    """Drawing takes most of the time of a page."""
    monkeypatch.setattr(curves, "PANELS", ())


@pytest.fixture
def all_panels(_no_panels, monkeypatch):
    monkeypatch.setattr(curves, "PANELS", ALL_PANELS)


@pytest.fixture
def make_run(tmp_path):
    """Writes a run folder; parts given as None are left out."""

    def make(name="part", *, config=None, metrics="usual", entries="usual", explain="usual", tensors="usual"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        config = config or recipes.RECIPES["shapes-part"](epochs=3, burn_in={"epochs": 1})
        (folder / "config.json").write_text(config.to_json())
        if metrics == "usual":
            metrics = [
                metrics_rows.metrics_row(1, phase="burn-in"),
                metrics_rows.metrics_row(2, phase="mask"),
                metrics_rows.metrics_row(3, phase="mask"),
            ]
        if metrics is not None:
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
        if entries is not None:
            entries = entries if entries != "usual" else [_entry("natural", 0.71), _entry("pgd20", 0.43)]
            (folder / "eval.json").write_text(json.dumps({"schema_version": 1, "entries": entries}))
        if explain is not None:
            (folder / "explain.json").write_text(json.dumps(explain if explain != "usual" else _explained()))
        if tensors is not None:
            save_file(tensors if tensors != "usual" else _arrays(), folder / "explain.safetensors")
        return folder

    return make


@pytest.fixture
def measured(tmp_path):
    """Writes a run folder with results and their flags, by attack; `labels` are those of the images."""

    def make(name, results, *, config=None, labels=None, eps=8 / 255, **changes):
        folder, entries = tmp_path / name, []
        (folder / "eval").mkdir(parents=True)
        (folder / "config.json").write_text((config or recipes.RECIPES["shapes-at"](epochs=3)).to_json())
        rows = [json.dumps(metrics_rows.metrics_row(epoch)) for epoch in (1, 2, 3)]
        (folder / "metrics.jsonl").write_text("\n".join(rows))
        for number, (attack, right) in enumerate(results.items()):
            correct, n, key = int(right.sum()), len(right), hashlib.sha256(f"{name}{number}".encode()).hexdigest()[:32]
            own = attack.partition("@")[2]
            facts = {"eps": parse_fraction(own) if own else eps, "correct": correct, "n": n, "key": key}
            facts |= {"interval": list(wilson(correct, n)), "fingerprint": fingerprint(right), "subject": None}
            facts["pixels"] = f"{n:064x}"
            entries.append(
                _entry(attack, correct / n, **facts | ({"eps": 0.0} if attack == "natural" else {}) | changes)
            )
            np.save(folder / "eval" / f"{key}.npy", right)
            if labels is not None:
                np.save(folder / "eval" / f"labels-{facts['pixels'][:16]}.npy", np.asarray(labels, np.uint8))
        (folder / "eval.json").write_text(json.dumps({"schema_version": 1, "entries": entries}))
        return folder

    return make


class Node:
    def __init__(self, tag, attrs):
        self.tag, self.attrs, self.children = tag, attrs, []

    def all(self, tag, cls=""):
        found = []
        for child in self.children:
            if isinstance(child, Node):
                if child.tag == tag and (not cls or cls in (child.attrs.get("class") or "").split()):
                    found.append(child)
                found += child.all(tag, cls)
        return found

    @property
    def text(self):
        """The visible text with white space collapsed."""
        parts = [child if isinstance(child, str) else child.text for child in self.children]
        return " ".join("".join(parts).split())


class Tree(HTMLParser):
    """A page as nodes; fails if tags do not nest."""

    def __init__(self, html):
        super().__init__()
        self.root = Node("root", {})
        self.open = [self.root]
        self.feed(html)
        assert self.open == [self.root], f"unclosed: {[node.tag for node in self.open[1:]]}"

    def handle_starttag(self, tag, attrs):
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop().tag == tag, f"</{tag}> closes something else"

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_data(self, data):
        self.open[-1].children.append(data)


@pytest.fixture
def page(tmp_path):
    """Writes a report of run folders and parses it."""
    return lambda *folders, **settings: (
        Tree(write_report(list(folders), tmp_path / "r.html", **settings).read_text(encoding="utf-8")).root
    )
