"""An experiment: its arms, attacks and plot; `run_experiment` trains what is missing and writes table and figure."""

import contextlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelpart import experiments
from pixelpart.errors import UserError, choose
from pixelpart.experiments.common.paper import Numbers
from pixelpart.experiments.common.results import CHECKPOINT, Pairs, Results, read_run_result
from pixelpart.experiments.common.scales import SCALES, Arms, Scale
from pixelpart.experiments.common.tables import Table, all_tables, general_notes, latex, markdown
from pixelpart.files import atomic_write
from pixelpart.runs import RunFolder
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps.jobs import JobState, find_finished, job_states, run_jobs
from pixelpart.sweeps.work import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = dict[str, list[tuple[Job, Path]]]  # jobs and the folders of their runs, by arm

FOUR = ("natural", "pgd20", "mma20", "autoattack")
BLIND = "Blind: no result is shown before all are there."
STEP_SIZES = {"svhn": 1 / 255}  # of the attacks, as in the paper


@dataclass(frozen=True)
class Experiment:
    """What an experiment is made of; see docs/experiments.md."""

    plot: "Callable[[Results], Figure]"
    arms: Callable[[Scale], Arms] = lambda scale: {}
    attacks: tuple[str, ...] = ()  # at demo scale apgd takes the place of autoattack
    measures: tuple[str, ...] = ()  # module:function, called with run, job and device once all runs are trained
    columns: Callable[[Scale], Sequence[str]] | None = None  # of the table (default: the attacks)
    reads: tuple[str, ...] = ()  # further columns, from which `analyse` derives others
    paper: Callable[[Scale], Numbers] = lambda scale: {}
    baselines: Callable[[Arms], Pairs] = lambda arms: []
    analyse: "Callable[[Results, Runner], list[Table]]" = lambda results, runner: []  # fills results.analysis
    seeds: Mapping[str, range] = field(default_factory=lambda: {"paper": range(3), "demo": range(1)})
    fewer: Mapping[str, int] = field(default_factory=dict)  # arms with at most this many seeds, at paper scale
    split: str = "test"
    scales: Mapping[str, Scale] = field(default_factory=lambda: SCALES)
    data: tuple[str, ...] = ("cifar10",)  # choices of --data at paper scale
    # scales at which no result is read or shown before all runs have finished, and what is decided then
    blind: Mapping[str, str] = field(default_factory=dict)
    withhold: Callable[[Results], str] = lambda results: ""  # why results are not shown even then
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExperimentOutcome:
    """What `run_experiment` leaves: results, the folder with result.json, tables and figures, and job states.

    There are no results and no files while a blind experiment withholds them.
    """

    results: Results | None
    folder: Path
    states: list[JobState]
    text: str  # of table.md, or why there is none

    @property
    def failed(self) -> list[JobState]:
        return [state for state in self.states if state.state == "failed"]

    @property
    def missing(self) -> list[JobState]:
        return [state for state in self.states if state.state not in ("done", "failed")]


def load(name: str) -> Experiment:
    """The experiment of that name; its module is imported now."""
    choose(experiments.EXPERIMENTS, name, "experiment")
    return importlib.import_module(f"pixelpart.experiments.{name.replace('-', '_')}").EXPERIMENT


def choose_scale(experiment: Experiment, scale: str, data: str | None) -> Scale:
    chosen = choose(experiment.scales, scale, "scale")
    if data is None or data == chosen.data:
        return chosen
    if scale != "paper":
        raise UserError(f"scale {scale} uses {chosen.data}; --data {data} needs --scale paper")
    choose(dict.fromkeys(experiment.data), data, "data set")
    return replace(chosen, data=data)


@dataclass
class Runner:
    """Runs jobs in `out`, or finds their runs below `source` without training."""

    name: str
    experiment: Experiment
    scale: Scale
    out: Path
    seeds: range
    source: Path | None = None
    any_seed: bool = False  # all runs below `source` are used, whatever their seeds; not if the experiment is blind
    settings: dict[str, Any] = field(default_factory=dict)  # of run_jobs
    only: tuple[str, ...] = ()  # train no other arms
    states: list[JobState] = field(default_factory=list)

    def find(self, arms: Arms, **request: Any) -> Found:
        """The finished runs of each arm; training and attacks come first, then measures, which may use other runs."""
        own = self.experiment
        usual: dict[str, Any] = {"checkpoint": CHECKPOINT, "images": self.scale.images, "split": own.split}
        usual["step_size"] = STEP_SIZES.get(self.scale.data)
        request = {"attacks": self.attacks} | usual | request
        first = request.pop("seeds", None)  # only the first of the seeds
        jobs = {
            label: [Job(config.model_copy(update={"seed": seed}), **request) for seed in self.seeds_of(label)[:first]]
            for label, config in arms.items()
        }
        every = [job for group in jobs.values() for job in group]
        if self.source is not None:
            folders = find_finished(every, self.source, self.settings["screen"].say)
        else:
            chosen = [job for label, group in jobs.items() if not self.only or label in self.only for job in group]
            names = {job.id: f"{label}, seed {job.config.seed}" for label, group in jobs.items() for job in group}
            states = run_jobs(chosen, self.out, names=names, **self.settings) if chosen else []
            all_states = job_states(every, self.out) if self.only else states
            if own.measures and all(state.state == "done" for state in all_states):
                every = [replace(job, attacks=(), measures=own.measures) for job in every]
                states = all_states = run_jobs(every, self.out, names=names, **self.settings)
            self.states += states
            folders = {state.job.id: state.folder for state in all_states if state.state == "done"}
        return {label: [(job, folders[job.id]) for job in group if job.id in folders] for label, group in jobs.items()}

    def waiting(self, found: Found) -> str:
        """How many runs a blind experiment still waits for; "" if all are there."""
        counts = {label: (len(runs), len(self.planned(label))) for label, runs in found.items()}
        there, total = map(sum, zip(*counts.values(), strict=True))
        if there == total:
            return ""
        rule = self.experiment.blind[self.scale.name]
        arms = ", ".join(f"{label} {there} of {n}" for label, (there, n) in counts.items())
        return f"{there} of {total} runs are there: {arms}.\n{BLIND}{f' {rule}' * bool(rule)}\n"

    def unevaluated(self, results: Results) -> str:
        """Which runs of a blind experiment lack results per image; "" if none does."""
        runs = [run for group in results.runs.values() for run in group if not {*self.attacks} <= run.flags.keys()]
        names = ", ".join(str(run.folder) for run in runs)
        return names and f"All runs are there, but not evaluated with {', '.join(self.attacks)}: {names}.\n{BLIND}\n"

    def seeds_of(self, label: str) -> Sequence[int]:
        """The seeds of an arm."""
        return self.seeds_below if self.any_seed else self.planned(label)

    def planned(self, label: str) -> range:
        return self.seeds[: self.experiment.fewer.get(label)] if self.scale.name == "paper" else self.seeds

    @cached_property
    def seeds_below(self) -> list[int]:
        """The seeds of the runs below `source`."""
        assert self.source is not None
        found = set()
        for path in self.source.rglob("config.json"):
            with contextlib.suppress(UserError):
                found.add(RunFolder(path.parent).read_config().seed)
        return sorted(found)

    @property
    def attacks(self) -> tuple[str, ...]:
        """The experiment's; at demo scale, of AutoAttack's four parts the two that break nearly all."""
        shorter = {"autoattack": "apgd"} if self.scale.name == "demo" else {}
        return tuple(shorter.get(attack, attack) for attack in self.experiment.attacks)

    def results(self, arms: Arms, found: Found) -> Results:
        """What the runs have of the experiment's columns, by default those of their attacks."""
        own, listed = self.experiment, experiments.EXPERIMENTS[self.name]
        requested = dict.fromkeys(attack for runs in found.values() for job, _ in runs for attack in job.attacks)
        columns = list(own.columns(self.scale)) if own.columns else [*requested] or [*self.attacks]
        read = (*columns, *requested, *own.reads)
        runs = {label: [read_run_result(job, folder, read) for job, folder in group] for label, group in found.items()}
        return Results(
            self.name, listed.title, listed.number, self.scale.name, self.scale.data, columns, arms, runs,
            own.paper(self.scale), own.baselines(arms), {label: len(self.planned(label)) for label in arms},
            notes=list(own.notes), split=own.split,
        )  # fmt: skip

    def more(self, arms: Arms, **request: Any) -> Results:
        """The results of further runs, which differ from the experiment's jobs in these fields of a `Job`."""
        return self.results(arms, self.find(arms, **request))


def run_experiment(
    name: str,
    *,
    out: Path,
    scale: str = "demo",
    data: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    source: Path | None = None,
    workers: int = 1,
    threads: int = 1,
    device: str | None = None,
    on: str = "local",
    screen: Screen | None = None,
) -> ExperimentOutcome:
    """Trains and evaluates what is missing, then writes result.json, tables and figures to out/name.

    The runs are in out/runs and shared by all experiments. `only` names arms: others are shown if their runs are there,
    but not trained. With `source`, finished runs are looked for below that folder, and nothing is trained. A blind
    experiment writes nothing before all runs have finished.
    """
    experiment = load(name)
    chosen = choose_scale(experiment, scale, data)
    if source is not None and not source.is_dir():
        raise UserError(f"no folder {source}")
    settings = {"workers": workers, "threads": threads, "device": device, "on": on, "screen": screen or Screen()}
    usual, blind = experiment.seeds[scale], scale in experiment.blind
    if blind and seeds and seeds < len(usual):
        raise UserError(
            f"{name} at scale {scale} withholds its results until all {len(usual)} seeds have finished; "
            f"--seeds {seeds} is too few"
        )
    chosen_seeds = range(usual.start, usual.start + (seeds or len(usual)))
    arms = experiment.arms(chosen)
    if only and not arms:
        raise UserError(f"{name} has no arms: leave out --arms")
    for label in only:
        choose(arms, label, "arm")
    any_seed = source is not None and seeds is None and not blind
    runner = Runner(name, experiment, chosen, out, chosen_seeds, source, any_seed, settings, tuple(only))
    folder = out / (name if data in (None, experiment.data[0]) else f"{name}-{data}")
    found = runner.find(arms)
    if blind and (reason := runner.waiting(found)):
        return ExperimentOutcome(None, folder, runner.states, reason)
    results = runner.results(arms, found)
    if reason := (blind and runner.unevaluated(results)) or experiment.withhold(results):
        return ExperimentOutcome(None, folder, runner.states, reason)
    tables = all_tables(results, experiment.analyse(results, runner))
    text = markdown(results, tables)
    atomic_write(folder / "result.json", json.dumps(results.as_json(), indent=2, allow_nan=False) + "\n")
    atomic_write(folder / "table.md", text)
    atomic_write(folder / "table.tex", latex(tables, general_notes(results)))
    figure = experiment.plot(results)
    figure.savefig(folder / "figure.png", dpi=150, metadata={"Software": None})
    figure.savefig(folder / "figure.pdf", metadata={"CreationDate": None})
    return ExperimentOutcome(results, folder, runner.states, text)
