"""Runs whose first epochs agree share them: one of them trains them, and the others are forked from it.

A burn-in has no mask, so that runs which differ only in their masks do the same in it. Of a grid with the runs `at`,
`mean` and `soft` (the rule of the mask) of 80 epochs with a burn-in of 20, `share_burn_ins` makes

    burn-ins to train first: at, stopped after epoch 20, of which it keeps the checkpoint (`Task.burn_in` is 20)
    tasks: at, which goes on from there; mean and soft, which start from at@20 (`Task.parent`, then `init_from`)

and so 80 + 60 + 60 epochs instead of 240. Which runs agree is decided by `identity.burn_in`: all fields that matter in
the first epochs, as a string. A fork ends with the weights that it would have had unforked, so it has the same
identity and folder name, and a sweep finds it again however it was trained. If a burn-in fails, the runs train their
own (`work._train`). A run without a mask serves burn-ins of several lengths: it keeps a checkpoint after each.
"""

from dataclasses import replace

from pixelpart.runs import RunFolder, read_facts
from pixelpart.sweeps.identity import burn_in
from pixelpart.sweeps.work import JobFiles, Task


def share_burn_ins(tasks: list[Task]) -> tuple[list[Task], list[Task]]:
    """The burn-ins to train first, and the tasks, of which some become forks; a fork ends in the same bits.

    The source is a run whose checkpoint after burn-in exists or is being trained, else a run without a mask, else the
    first of the group.
    """
    new = [task for task in tasks if not JobFiles(task.out, task.id).begun()]
    groups: dict[tuple[int, str], list[Task]] = {}
    for task in new:
        epochs = task.config.burn_in.epochs
        if epochs and (key := burn_in(task.config, epochs)):
            groups.setdefault((epochs, key), []).append(task)
    existing = _existing(new[0], {epochs for epochs, _ in groups}) if groups else {}
    sources: dict[str, Task] = {}  # each stops after the longest of the burn-ins that start there
    forks: dict[str, tuple[str, int]] = {}  # source and epoch
    for epochs, key in sorted(groups, reverse=True):  # the longest first: its source can serve shorter ones too
        source = existing.get(key)
        if source is None:
            able = [task for task in new if task.id not in forks and burn_in(task.config, epochs) == key]
            source = min(able, key=lambda task: (task.id not in sources, task.config.mask.rule != "none"))
        followers = [task for task in groups[epochs, key] if task.id not in {source.id, *sources}]
        if followers:
            source = sources.get(source.id, replace(source, jobs=(), burn_in=epochs))
            keep = tuple(sorted({*source.config.keep, epochs}))
            sources[source.id] = replace(source, config=source.config.model_copy(update={"keep": keep}))
            forks |= {task.id: (source.id, epochs) for task in followers}
    tasks = [replace(task, config=sources.get(task.id, task).config) for task in tasks]
    tasks = [
        replace(task, parent=replace(sources[forks[task.id][0]], burn_in=forks[task.id][1]))
        if task.id in forks
        else task
        for task in tasks
    ]
    return [source for source in sources.values() if not _is_kept(source)], tasks


def _existing(task: Task, lengths: set[int]) -> dict[str, Task]:
    """The burn-ins of these lengths that runs of the sweep folder have kept, or have begun and will keep."""
    burn_ins: dict[str, Task] = {}
    for path in sorted(task.out.glob("runs/*/checkpoints/last.safetensors")):
        folder = RunFolder(path.parent.parent)
        config = folder.read_config()
        for epochs in lengths & {*config.keep, config.burn_in.epochs}:
            key, source = burn_in(config, epochs), Task(task.out, folder.path.name, config, burn_in=epochs)
            if key and (_is_kept(source) or (key not in burn_ins and read_facts(path)["epoch"] < epochs)):
                burn_ins[key] = replace(source, device=task.device)
    return burn_ins


def _is_kept(source: Task) -> bool:
    return JobFiles(source.out, source.id).run.checkpoint(f"epoch-{source.burn_in}").exists()
