"""Runs whose first epochs agree share them: one of them trains them, and the others are forked from it."""

from dataclasses import replace
from pathlib import Path

from pixelpart.runs import RunFolder, read_facts
from pixelpart.sweeps.identity import burn_in
from pixelpart.sweeps.work import Fork, JobFiles, Task


def share_burn_ins(tasks: list[Task]) -> tuple[list[Task], list[Task]]:
    """The burn-ins to train first, and the tasks, of which some become forks; a fork ends in the same bits.

    A group is led by a run whose checkpoint after burn-in is there or will be, else by a plain run, else by its first.
    """
    new = [task for task in tasks if not JobFiles(task.out, task.id).begun()]
    groups: dict[tuple[int, str], list[Task]] = {}
    for task in new:
        epochs = task.config.burn_in.epochs
        if epochs and (key := burn_in(task.config, epochs)):
            groups.setdefault((epochs, key), []).append(task)
    forks: dict[str, Fork] = {}
    leaders: dict[str, Task] = {}
    existing = _existing(tasks[0].out, {epochs for epochs, _ in groups}) if groups else {}
    for epochs, key in sorted(groups, reverse=True):  # the longest first: its leader can lead shorter ones too
        group = [task for task in groups[epochs, key] if task.id not in leaders]
        if fork := existing.get(key):
            forks |= {task.id: fork for task in group}
            if not _kept(tasks[0].out, fork):
                run = Task(tasks[0].out, fork.id, fork.config, stop_after=epochs, device=tasks[0].device)
                leaders.setdefault(fork.id, run)
            continue
        able = [task for task in new if task.id not in forks and burn_in(task.config, epochs) == key]
        leader = min(able, key=lambda task: (task.id not in leaders, task.config.mask.rule != "none"))
        if followers := [task for task in group if task.id != leader.id]:
            leader = leaders.get(leader.id, replace(leader, jobs=(), stop_after=epochs))
            keep = tuple(sorted({*leader.config.keep, epochs}))
            leaders[leader.id] = replace(leader, config=leader.config.model_copy(update={"keep": keep}))
            forks |= {task.id: Fork(leader.id, leader.config, epochs) for task in followers}
    led = {id: task.config for id, task in leaders.items()}
    forks = {id: replace(fork, config=led.get(fork.id, fork.config)) for id, fork in forks.items()}
    return list(leaders.values()), [
        replace(task, config=led.get(task.id, task.config), fork=forks.get(task.id)) for task in tasks
    ]


def _existing(out: Path, lengths: set[int]) -> dict[str, Fork]:
    """The burn-ins of these lengths that runs of the folder have kept, or have begun and will keep."""
    found: dict[str, Fork] = {}
    for path in sorted(out.glob("runs/*/checkpoints/last.safetensors")):
        folder = RunFolder(path.parent.parent)
        config = folder.read_config()
        for epochs in lengths & {*config.keep, config.burn_in.epochs}:
            key, fork = burn_in(config, epochs), Fork(folder.path.name, config, epochs)
            if key and (_kept(out, fork) or (key not in found and read_facts(path)["epoch"] < epochs)):
                found[key] = fork
    return found


def _kept(out: Path, fork: Fork) -> bool:
    return RunFolder(out / "runs" / fork.id).checkpoint(f"epoch-{fork.epoch}").exists()
