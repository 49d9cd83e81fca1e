"""``python -m connectors``: the commands, which are no part of what a job carries."""

import sys
from importlib import import_module

try:
    cli = import_module("connectors_tools.cli")
except ModuleNotFoundError as missing:
    place = "the package connectors_tools beside connectors" if missing.name == "connectors_tools" else missing.name
    sys.exit(f"The commands need {place}: take the whole repository, and pip install -r requirements.txt")
cli.main(prog_name="connectors")
