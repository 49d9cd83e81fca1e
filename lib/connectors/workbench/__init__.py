"""Everything a notebook needs around Spark, the same in Jupyter, in the local job runner and in a workspace.

:func:`session` gives the Spark session, :func:`notebook` what the bootstrap cell needs, :func:`display` shows tables
and figures, :class:`DbUtils` is ``dbutils`` outside a workspace, :func:`workdir` the folder for a notebook's data.
"""

from .bootstrap import BOOTSTRAP, notebook
from .paths import workdir
from .shim import DbUtils, NotebookExit
from .show import display, display_html
from .start import session

__all__ = ["BOOTSTRAP", "DbUtils", "NotebookExit", "display", "display_html", "notebook", "session", "workdir"]
