"""The workbench's daemon of Python workers, in which faults can strike the calls to systems.

Spark starts it by the name of its module.
"""

import os

from connectors.testing.faults import FailureInjector, faulty_calls
from connectors.workbench.daemon import serve

from .driver import FAULTS_VARIABLE

if __name__ == "__main__":
    faulty_calls(FailureInjector(os.environ[FAULTS_VARIABLE]))
    serve()
