"""Where programs of `horovod.spark` look for `run` and its estimators. There are none here; an
`ImportError`, which such programs know to catch, says what to do instead."""

raise ImportError(
    "Lockstitch starts nothing on Spark and has no estimators. Have each task of a barrier stage "
    "set HOROVOD_RANK, HOROVOD_SIZE, MASTER_ADDR and MASTER_PORT and call hvd.init(), or start "
    "ranks by lockstitch.hvd.run(function, np=N): see docs/how-to/port-from-horovod.md",
    name=__name__,
)
