"""Repeats a history, with as few moves as show what is wrong: ``python -m connectors.testing.simulation WORLD SEED``.

The world is a name, such as ``queue-files``, or the context of a connector, such as ``tests.test_orders:OrdersContext``.
The exit code is 1 for a history that is wrong.
"""

from __future__ import annotations

import argparse
import sys

from .history import run, shrunk
from .worlds import WORLDS, World, world_of


def _world(name: str) -> World:
    try:
        world = world_of(name)
    except (ImportError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}; a context is found from PYTHONPATH") from error
    if isinstance(world, str) and world not in WORLDS:
        raise argparse.ArgumentTypeError(f'must be {", ".join(WORLDS)}, or a context as module:Class; got "{name}"')
    return world


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m connectors.testing.simulation", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("world", type=_world, metavar="WORLD", help=f"{', '.join(WORLDS)}, or module:Context")
    parser.add_argument("seed", type=int, metavar="SEED")
    arguments = parser.parse_args()
    history = run(arguments.world, arguments.seed)
    print((shrunk(history) if history.fault else history).text())
    sys.exit(bool(history.fault))
