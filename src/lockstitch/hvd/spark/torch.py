"""Where programs of `horovod.spark.torch` look for `TorchEstimator`. There is none; an
`ImportError`, which such programs know to catch, says what to do instead."""

raise ImportError(
    "Lockstitch has no estimators for Spark: train in a function by lockstitch.hvd.spark.run, "
    "whose ranks read their part of what Spark has written (docs/how-to/run-on-spark.md)",
    name=__name__,
)
