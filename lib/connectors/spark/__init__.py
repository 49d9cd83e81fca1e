"""The adapters between the core and Spark: formats, the ``foreachBatch`` carrier, and the session seam."""
