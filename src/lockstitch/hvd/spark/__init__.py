"""Where programs of `horovod.spark` look for `run` and `run_elastic`: ranks as tasks of Spark.

    task       get_available_devices: the GPUs that Spark has given to a rank
    conf       settings of Spark that programs of `run_elastic` choose by name
    torch      estimators, which are not here
    lightning  the same for PyTorch Lightning
    common     what estimators stand on, which is not here either

The work is done in `lockstitch.spark`, which starts processes and stands above this floor.
"""

from lockstitch.spark.context import pyspark as _pyspark
from lockstitch.spark.elastic import run_elastic
from lockstitch.spark.running import run

__all__ = ["run", "run_elastic"]

_pyspark()  # a program that can do without Spark finds out by its import, as from the original
