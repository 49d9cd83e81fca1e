"""Repeats a history, with as few moves as show what is wrong: ``python -m connectors.testing.simulation WORLD SEED``."""

from __future__ import annotations

import sys

from .history import run, shrunk

if __name__ == "__main__":
    history = run(sys.argv[1], int(sys.argv[2]))
    print((shrunk(history) if history.fault else history).text())
