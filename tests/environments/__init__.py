"""Where the library runs: one process, real executors, Spark Connect."""
