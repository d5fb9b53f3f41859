"""Where programs of `horovod.spark.lightning` look for `TorchEstimator`. There is none, as `torch`
says."""

import lockstitch.hvd.spark.torch  # noqa: F401 - raises
