"""AutoAttack (Croce and Hein 2020): several searches in turn, each on the samples that those before it left correct.

`run_searches` is the driver, used by `autoattack` and by `pixelpart evaluate`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from pixelpart.attacks.apgd import apgd_search, mm3_search
from pixelpart.attacks.ball import check_attack_inputs, check_attack_labels, default_generator
from pixelpart.attacks.batching import Samples, Try, run_tries
from pixelpart.attacks.fab import fab_search
from pixelpart.attacks.search import Search, budget_per_sample, is_correct
from pixelpart.attacks.square import square_search
from pixelpart.errors import UserError, choose
from pixelpart.runtime.precision import PRECISIONS, ieee_fp32
from pixelpart.types import Budget, Flags, Images, Labels, Model
from pixelpart.view.borrow import borrowed
from pixelpart.view.check import trusted_view

SEARCHES: dict[str, Search] = {
    "apgd-ce": apgd_search(),
    "apgd-dlr": apgd_search(loss="dlr"),
    "apgd-t": apgd_search(targets=9),
    "fab": fab_search(targets=0),
    "fab-t": fab_search(),
    "mm3": mm3_search(),
    "square": square_search(),
    "apgd-ce-l2": apgd_search(norm="l2"),
    "apgd-t-l2": apgd_search(targets=9, norm="l2"),
    "apgd-ce-l1": apgd_search(norm="l1"),
    "apgd-t-l1": apgd_search(targets=9, norm="l1"),
}

# APGD-CE, then APGD-T on the samples that it leaves
COMBINED: dict[str, dict[str, Search]] = {
    f"apgd{norm}": {name: SEARCHES[name] for name in (f"apgd-ce{norm}", f"apgd-t{norm}")} for norm in ("", "-l2", "-l1")
}

VERSIONS: dict[str, dict[str, Search]] = {
    "standard": {name: SEARCHES[name] for name in ("apgd-ce", "apgd-t", "fab-t", "square")},
    "plus": {
        "apgd-ce": apgd_search(restarts=5),
        "apgd-dlr": apgd_search(loss="dlr", restarts=5),
        "fab": fab_search(targets=0, restarts=5),
        "square": SEARCHES["square"],
        "apgd-t": SEARCHES["apgd-t"],
        "fab-t": SEARCHES["fab-t"],
    },
}

SearchProgress = Callable[[str, int, int, int], None]  # search, tries done, tries in total, samples still correct


def autoattack(
    model: Model,
    x: Images,
    y: Labels,
    budget: Budget,
    *,
    version: str = "standard",
    search: str = "fp32",
    slots: int | None = None,
    generator: torch.Generator | None = None,
    out: Images | None = None,
) -> Flags:
    """Which images the model still classifies correctly after all searches of the version, "standard" or "plus".

    The search may run in bf16; IEEE fp32 decides. `slots` images are attacked at a time. With two classes there is no
    dlr loss, and plus leaves out apgd-dlr. `out`, a tensor like x, receives the adversarial images: of the images that
    are classified correctly without an attack and not after it; its others stay as they are.
    """
    searches = choose(VERSIONS, version, "version")
    choose(PRECISIONS, search, "search")
    check_attack_inputs(x, budget, step_size=0.0, steps=0)
    generator = generator or default_generator(x)
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    if slots is not None and slots < 1:
        raise UserError(f"slots {slots} must be at least 1")
    if out is not None and not isinstance(out, Tensor):
        raise UserError(f"out is a {type(out).__name__}; it must be like x, such as x.clone()")
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype or out.device != x.device):
        raise UserError(f"out is {tuple(out.shape)} {out.dtype} on {out.device}; it must be like x, such as x.clone()")
    slots = slots or default_slots(x.device)
    with torch.no_grad(), ieee_fp32(x.device), borrowed(model) as net:
        clean_logits = torch.cat([net(part) for part in x.split(slots)])
        classes = clean_logits.shape[1]
        check_attack_labels(y, classes, n=len(x))
        view, _ = trusted_view(net, x[:slots], search)
        budget = budget_per_sample(budget, x)
        samples = Samples(lambda index: (x[index], y[index]), budget, clean_logits, net, seed, found=out)
        correct = is_correct(clean_logits, y)
        correct, _ = run_searches(possible_searches(searches, classes), view, samples, correct, slots=slots)
    return correct


@torch.no_grad()
def run_searches(
    searches: Mapping[str, Search],
    view: Model,
    samples: Samples,
    correct: Flags,
    *,
    slots: int,
    settled: Mapping[Try, bool] = MappingProxyType({}),
    on_settled: Callable[[Try, bool], None] = lambda try_, broken: None,
    progress: SearchProgress = lambda search, done, total, correct: None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Flags, dict[str, int]]:
    """Which of the correct samples remain correct under all searches, each run on those that the others left.

    Also how many are left after each search.

    `view` is searched through and may be bf16; the model of `samples` decides, in fp32. `settled` are tries already
    done (a resumed run); `on_settled(try, broken)` reports each new try as it ends.
    """
    correct, left = correct.clone(), dict[str, int]()
    for name, search in searches.items():
        attacked = correct.nonzero()[:, 0].tolist()
        numbers = range(search.tries(samples.clean_logits.shape[1]))
        tries = [Try(name, sample, number) for number in numbers for sample in attacked]
        broken = {try_.sample for try_ in tries if settled.get(try_)}
        waiting = [try_ for try_ in tries if try_.sample not in broken and try_ not in settled]
        done = len(tries) - len(waiting)
        progress(name, done, len(tries), len(attacked) - len(broken))
        for try_, errs in run_tries(search, view, samples, waiting, slots=slots, say=say):
            on_settled(try_, errs)
            done += 1
            if errs:
                broken.add(try_.sample)
            progress(name, done, len(tries), len(attacked) - len(broken))
        progress(name, len(tries), len(tries), len(attacked) - len(broken))
        correct[list(broken)] = False
        left[name] = len(attacked) - len(broken)
    return correct, left


def possible_searches(searches: Mapping[str, Search], classes: int) -> dict[str, Search]:
    """The searches that are possible with this many classes."""
    return {name: search for name, search in searches.items() if search.min_classes <= classes}


def default_slots(device: torch.device) -> int:
    """How many images are attacked at a time unless the caller says otherwise."""
    return 1024 if device.type == "cuda" else 128
