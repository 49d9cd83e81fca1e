"""The simulator finds protections that are missing, without a test written for them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import CodeType

import pytest

from .mutations import MUTATIONS

QUICK = ("put-replaces", "no-neighbours", "content-not-synced", "claim-replaces")
SEEDS = 5000


class MutatedLoader(SourceFileLoader):
    """Loads a module as its mutation has it."""

    def __init__(self, mutation: str) -> None:
        super().__init__(MUTATIONS[mutation].module, str(file_of(mutation)))
        self.mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        return compile(mutated(self.mutation), self.path, "exec")


class MutatedModule(MetaPathFinder):
    """Finds the module of a mutation before Python does."""

    def __init__(self, mutation: str) -> None:
        self.mutation = mutation

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        is_mutated = fullname == MUTATIONS[self.mutation].module
        return spec_from_loader(fullname, MutatedLoader(self.mutation)) if is_mutated else None


def file_of(name: str) -> Path:
    spec = find_spec("connectors")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*MUTATIONS[name].module.split(".")[1:]).with_suffix(".py")


def mutated(name: str) -> str:
    """The text of the module of a mutation, with it."""
    mutation, text = MUTATIONS[name], file_of(name).read_text()
    assert mutation.old in text, f"{mutation.module} has no longer what {name} takes out"
    return text.replace(mutation.old, mutation.new, 1)


def first_fault(name: str, seeds: int) -> str:
    """The fault of the first history that is wrong with the mutation; empty if none of ``seeds`` is."""
    code = f"from {__name__} import search; search({name!r}, {seeds})"
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "lib"), str(root)])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def search(name: str, seeds: int) -> None:
    """Prints what the first history says that is wrong. In a process of its own, whose library is mutated."""
    sys.meta_path.insert(0, MutatedModule(name))
    from connectors.testing.simulation.history import run

    for seed in range(1, seeds + 1):
        if fault := run(MUTATIONS[name].world, seed).fault:
            print(f"seed {seed}: {fault}")
            return


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_fits_the_library(name: str) -> None:
    ast.parse(mutated(name))


@pytest.mark.parametrize("name", QUICK)
def test_the_simulator_finds_what_is_missing(name: str) -> None:
    assert first_fault(name, 60)


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulator_finds_each_mutation(name: str) -> None:
    assert first_fault(name, SEEDS)
