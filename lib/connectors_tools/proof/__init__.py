"""``python -m connectors prove``: a pipeline is broken again and again on the user's own systems, and every row compared.

=================  ====================================================================================================
part               what it does
=================  ====================================================================================================
:mod:`.subject`    the pipeline's notebook, its systems, and the names that the proof makes in them
:mod:`.driver`     a process with a Spark session that runs the notebook, and that faults strike
:mod:`.rounds`     the faults, one in each round: what breaks, and how the run ended
:mod:`.verdict`    compares the target with that of a run of the same notebook that nothing has disturbed
:mod:`.page`       the page of a proof
:mod:`.proof`      the whole of it
=================  ====================================================================================================
"""
