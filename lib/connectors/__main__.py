"""``python -m connectors``."""

from .cli import main

main(prog_name="connectors")
