"""`vla-zoo optimize --algo ppo --env Toy-Reach -n 20000 --n-trials 20`: search for better settings.

Every trial is a run of `vla-zoo train` in a process of its own, with several seeds if asked; what counts is the success
of its last evaluation. The study is a file: a search that was stopped (Ctrl-C, SIGTERM) is resumed by the same
command, and several processes may share it, all with the same settings.
"""

from __future__ import annotations

import csv
import fcntl
import os
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from vla_gym.errors import BadValue, MissingDependency, shortened, shown
from vla_gym.system.extras import install_command
from zoo.cli.arguments import OneLineParser, as_pairs, count, flag_of, seed
from zoo.cli.main import check_alone, guarded
from zoo.cli.run_flags import check_services, resolve_new_run
from zoo.config.algorithm_configs import ALGORITHMS, SearchSpace, check_algorithm
from zoo.config.gym_packages import import_gym_packages
from zoo.config.run_config import RunConfig, to_plain
from zoo.config.settings import Options, Seed, Settings, annotations_of, check_fields, check_value, yaml_line
from zoo.files import atomic_file, write_text
from zoo.runs.folder import RunFolder, folder_name
from zoo.train import parser as train_parser
from zoo.training.run_plan import RunPlan, check_startable
from zoo.yaml_text import parse_yaml, read_yaml_mapping

STUDY_FILE, BEST_FILE, TRIALS_FILE = "study.db", "best.yml", "trials.csv"
_NOT_TRAINS = {
    **dict.fromkeys(("algo", "env", "n_timesteps", "log_folder"), "give it before --"),
    "seed": "give --seed and --n-seeds before --",
    "resume": "a trial is a new run",
    "dry_run": "nothing would be trained",
    "push_to_hub": "publish the best run with vla-zoo push_to_hub",
    "params": "a trial draws them; settings that stay as they are go into a file: -- -conf FILE",
}
"""Flags of `vla-zoo train` that no trial takes, and the advice instead."""
_SETTINGS = "settings"
"""Attribute of a study with the settings that its trials share."""
_MAY_CHANGE = ("seed", "device", "num_threads")
"""Fields of `RunConfig` that do not make another search; the seeds of all runs are compared by themselves."""
_TRIAL = """
import sys
from vla_gym.system.child import end_with_parent
end_with_parent(int(sys.argv.pop(1)))
from zoo.cli.main import guarded
from zoo.train import run
sys.exit(guarded(run))
"""
"""`vla-zoo train`, after the id of the process that it ends with."""


def parser() -> OneLineParser:
    """The flags of `vla-zoo optimize`; anything after `--` goes to `vla-zoo train`."""
    p = OneLineParser("vla-zoo optimize", "Search settings with Optuna; a trial is a training run, success decides.")
    p.add_argument("--algo", type=str.lower, default="ppo", help="ppo or grpo (default: ppo)")
    p.add_argument("--env", metavar="ID", help="environment id")
    p.add_argument("-n", "--n-timesteps", type=count, metavar="STEPS", help="simulator steps of a run")
    p.add_argument("--n-trials", type=count, default=20, metavar="N", help="trials in all (default: 20)")
    p.add_argument("--n-seeds", type=count, default=1, metavar="K", help="runs of a trial, averaged (default: 1)")
    p.add_argument("--seed", type=seed, default=0, help="of the search and the first run (default: 0)")
    p.add_argument("--space", metavar="FILE", help="YAML file with what to search, instead of the usual settings")
    p.add_argument("-f", "--log-folder", default="logs", metavar="DIR", help="default: logs")
    p.add_argument("train", nargs="*", metavar="-- FLAGS", help="flags of vla-zoo train for every run, after --")
    return p


@dataclass(frozen=True, kw_only=True)
class Search:
    """The part that all trials share."""

    algo: str
    env: str
    n_timesteps: int
    seeds: tuple[int, ...]
    """Of a trial's runs."""
    space: SearchSpace
    log_folder: Path
    flags: tuple[str, ...]
    """Further flags of `vla-zoo train`."""

    @property
    def folder(self) -> Path:
        """Where the study and the trials' runs go."""
        return self.log_folder / self.algo / f"{folder_name(self.env)}_optimize"

    def success(self, trial: Any) -> float:
        """Train with drawn settings, one run per seed; mean success of the last evaluations.

        Raises `BadValue` with the run's own last line when one fails.
        """
        drawn, folder = draw(trial, self.space), self.folder / f"trial_{trial.number}"
        return statistics.mean(self._run(drawn, seed, folder) for seed in self.seeds)

    def check(self) -> RunConfig:
        """Raise for what no run could start with, as `vla-zoo train` would; nothing is written for it.

        Returns the first run's configuration, the drawn settings as if they were not drawn.
        """
        own = train_parser().parse(self.flags)
        for name, instead in _NOT_TRAINS.items():
            if getattr(own, name) != train_parser().get_default(name):
                raise BadValue(f"{flag_of(name)} after -- is not for trials: {instead}")
        import_gym_packages(own.gym_packages)
        check_value(Seed, self.seeds[-1], "the last run's seed")
        args = train_parser().parse(self.argv(self.seeds[0], self.folder, {}))
        check_services(args)
        config = resolve_new_run(args)
        check_startable(RunPlan.resolve(config))
        if not config.eval_episodes:
            raise BadValue("trials are judged by their last evaluation; do not pass --eval-episodes 0")
        return config

    def argv(self, seed: int, folder: Path, drawn: Mapping[str, object]) -> list[str]:
        """Return the flags of `vla-zoo train` for a run with the drawn settings."""
        argv = ["--algo", self.algo, "--env", self.env, "-n", str(self.n_timesteps), "--seed", str(seed)]
        return [*argv, "-f", str(folder), *self.flags, *(["-params", *as_pairs(drawn)] if drawn else [])]

    def settings(self, config: RunConfig) -> dict[str, str]:
        """Return the settings that all trials of a study share, in YAML; `config` is of one of its runs."""
        flat: Settings = {}
        for name, value in to_plain(config).items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            flat |= {f"{name}.{key}".rstrip("."): part for key, part in parts}
        shared = {name: yaml_line(value) for name, value in flat.items() if name not in _MAY_CHANGE}
        drawn = {f"space of {name}": yaml_line(kind) for name, kind in self.space.items()}
        return {**shared, "seeds": yaml_line(list(self.seeds)), **drawn}

    def _run(self, drawn: dict[str, object], seed: int, folder: Path) -> float:
        from zoo.runs.monitor import read_evaluations

        before, argv = set(folder.glob(f"{self.algo}/*")), self.argv(seed, folder, drawn)
        exit_code, said = _trained(argv)
        if exit_code:
            last = (said.strip().splitlines() or ["no message"])[-1]
            raise BadValue(f"vla-zoo train {shlex.join(argv)} failed: {last}")
        (run,) = set(folder.glob(f"{self.algo}/*")) - before
        points = read_evaluations(RunFolder(run))
        if not points or points[-1].steps < self.n_timesteps:
            raise BadValue(
                f"'{run}' was stopped before its last evaluation: the trial does not count; repeat the command"
            )
        return points[-1].rate.mean


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    check_alone("vla-zoo optimize")
    for name in ("env", "n_timesteps"):
        if getattr(args, name) is None:
            raise BadValue("give --env and -n. Example: vla-zoo optimize --algo ppo --env Toy-Reach -n 20000")
    if find_spec("optuna") is None:
        raise MissingDependency(f"vla-zoo optimize needs: {install_command('optimize')}")
    from optuna.study import MaxTrialsCallback
    from optuna.trial import TrialState

    algo = check_algorithm(args.algo)
    search = Search(
        algo=algo,
        env=args.env,
        n_timesteps=args.n_timesteps,
        seeds=tuple(args.seed + number for number in range(args.n_seeds)),
        space=ALGORITHMS[algo].search_space if args.space is None else read_space(Path(args.space), algo),
        log_folder=Path(args.log_folder),
        flags=tuple(args.train),
    )
    settings = search.settings(search.check())
    with opened(search.folder, f"{search.algo} {search.env} {search.n_timesteps}", args.seed) as study:
        _check_settings(search, study, settings)
        done = len(completed_trials(study))
    if done:
        print(f"going on with {search.folder}: {done} of {args.n_trials} trials are done")
    with database(search.folder / STUDY_FILE):
        enough = MaxTrialsCallback(args.n_trials, states=(TrialState.COMPLETE,))  # those of other processes count too
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the training of a trial, too
        study.optimize(search.success, n_trials=max(0, args.n_trials - done), callbacks=[_print_trial, enough])
        _write_best(search, study)
    return 0


def _trained(argv: Sequence[str]) -> tuple[int, str]:
    """Run `vla-zoo train`, which ends with this process; return its exit code and what it said on stderr."""
    command = [sys.executable, "-c", _TRIAL, str(os.getpid()), *argv]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # noqa: S603
    try:
        _, said = child.communicate()
    except BaseException:
        child.terminate()
        child.communicate()
        raise
    finally:
        child.kill()  # does nothing to one that has ended
    return child.returncode, said


@contextmanager
def database(file: Path) -> Iterator[None]:
    """Context manager in which what a study's database raises becomes a `BadValue` that names the file."""
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, OptunaError, ValueError, LookupError) as error:
        if isinstance(error, BadValue):
            raise
        # SQLite's own words are inside SQLAlchemy's error, and that may be inside Optuna's.
        inner = getattr(error, "orig", None) or getattr(error.__cause__, "orig", None)
        reason = (str(inner or error).splitlines() or [type(error).__name__])[0]
        raise BadValue(
            f"the study '{file}' cannot be used: {reason}. Move it away to search anew, or take another -f DIR"
        ) from error


@contextmanager
def opened(folder: Path, name: str, seed: int) -> Iterator[Any]:
    """Context manager that opens, or begins, Optuna's study `name` of a folder; other processes wait until it ends.

    The sampler draws from `seed` plus the number of trials: a resumed search would otherwise draw the first ones again.
    Raises `BadValue` for a file that is no study, is damaged, or cannot be written.
    """
    import optuna
    from sqlalchemy import URL

    # Its warning of a trial that failed is a traceback; commands print the error in one line.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / STUDY_FILE
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with database(file):
            # Not put together by hand: `?`, `%` and braces mean something in an address.
            address = URL.create("sqlite", database=str(file)).render_as_string()
            storage = optuna.storages.RDBStorage(address)
            study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
            study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
            if completed_trials(study):
                _ = study.best_trial  # read now, not after a trial has been trained
            yield study
            storage.remove_session()
            storage.engine.dispose()  # closes the database, which SQLAlchemy would keep open
    finally:
        os.close(lock)


def completed_trials(study: Any) -> list[Any]:
    """Return the completed trials; one that failed does not count, another takes its place."""
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])


def draw(trial: Any, space: SearchSpace) -> Settings:
    """Return one value of every setting, as Optuna's sampler suggests."""
    for name, kind in space.items():
        if isinstance(kind, Mapping):
            trial.suggest_float(name, **kind)
        else:
            # Optuna stores words and numbers; a choice may be a mapping too.
            trial.suggest_categorical(name, [yaml_line(value) for value in kind])
    return drawn_values(trial.params, space)


def _check_settings(search: Search, study: Any, settings: Mapping[str, str]) -> None:
    # Trials first: another process of this search notes its settings before it begins one.
    unknown: Mapping[str, str] = {} if study.trials else settings
    noted = study.user_attrs.get(_SETTINGS, unknown)
    others = [
        f"{name} was {noted.get(name, 'not set')}, is {settings.get(name, 'not set')}"
        for name in dict.fromkeys([*settings, *noted])
        if noted.get(name) != settings.get(name)
    ]
    if others:
        raise BadValue(
            f"{search.folder} holds a search with other settings: {shortened('; '.join(others), 400)}. Go on with "
            "those, or take another -f DIR"
        )
    study.set_user_attr(_SETTINGS, dict(settings))


def _print_trial(study: Any, trial: Any) -> None:
    drawn = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in trial.params.items()}
    settings = " ".join(f"{name}:{value}" for name, value in drawn.items())
    print(
        f"trial {trial.number:>3}   success {trial.value:6.1%}   best {study.best_value:6.1%}   {settings}",
        flush=True,
    )


def _write_best(search: Search, study: Any) -> None:
    completed = completed_trials(study)
    if not completed:
        raise BadValue(f"no trial of {search.folder / STUDY_FILE} was completed; repeat the command")
    with (
        atomic_file(search.folder / TRIALS_FILE) as partial,
        partial.open("w", encoding="utf-8", newline="") as file,
    ):
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["trial", "success", *search.space])
        rows.writerows(
            [trial.number, trial.value, *(trial.params[name] for name in search.space)] for trial in completed
        )
    best, drawn = search.folder / BEST_FILE, drawn_values(study.best_params, search.space)
    write_text(best, yaml.safe_dump(drawn, sort_keys=False))
    argv = search.argv(search.seeds[0], search.log_folder, drawn)
    print(f"best of {len(completed)} trials: {study.best_value:.1%} success, settings in {best}")
    print(f"next:\n  vla-zoo train {shlex.join(argv)}")


def drawn_values(params: Options, space: SearchSpace) -> Settings:
    """Return the settings that a trial's `params` stand for: of a choice they hold the YAML."""
    return {
        name: params[name] if isinstance(kind, Mapping) else parse_yaml(params[name], f"{name} of a trial")
        for name, kind in space.items()
    }


def read_space(file: Path, algo: str) -> SearchSpace:
    """Read a YAML file: `learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}` or `n_epochs: [1, 2, 3]`.

    Raises `BadValue` for a file that cannot be read and for anything that is neither, `UnknownName` for a setting
    that the algorithm does not have.
    """
    where, known = f"--space {file}", annotations_of(ALGORITHMS[algo])
    space: dict[str, Options | Sequence[Any]] = {}
    for name, kind in read_yaml_mapping(file, f"settings of {algo} to what to draw them from", where).items():
        span = isinstance(kind, Mapping) and {"low", "high"} <= kind.keys() <= {"low", "high", "log"}
        if not span and not (isinstance(kind, list) and kind):
            raise BadValue(f"{where}: {name} must be a list of values or {{low: ..., high: ..., log: true}}")
        ends = [kind["low"], kind["high"]] if span else kind
        checked = [check_fields(known, {name: value}, where)[name] for value in ends]
        if span and not (checked[0] < checked[1] and (checked[0] > 0 or not kind.get("log"))):
            raise BadValue(f"{where}: {name} needs low < high, and low > 0 with log, got {shown(kind)}")
        space[name] = {**kind, "low": checked[0], "high": checked[1]} if span else kind
    return space


if __name__ == "__main__":
    raise SystemExit(guarded(run))
