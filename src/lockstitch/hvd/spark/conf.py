"""Settings of Spark under the names by which programs of the original choose them for
`run_elastic`: pairs of a name and a value, for `SparkConf.set(*pair)`.

Spark has renamed those of its blacklist to `spark.excludeOnFailure` in 3.1: the values have the new
names.
"""

from typing import Final

_EXCLUDE: Final = "spark.excludeOnFailure"
_PER_EXECUTOR: Final = f"{_EXCLUDE}.stage.maxFailedTasksPerExecutor"
_PER_NODE: Final = f"{_EXCLUDE}.stage.maxFailedExecutorsPerNode"
_OF_TASK_PER_EXECUTOR: Final = f"{_EXCLUDE}.task.maxTaskAttemptsPerExecutor"
_OF_TASK_PER_NODE: Final = f"{_EXCLUDE}.task.maxTaskAttemptsPerNode"
_IN_APP_PER_EXECUTOR: Final = f"{_EXCLUDE}.application.maxFailedTasksPerExecutor"
_IN_APP_PER_NODE: Final = f"{_EXCLUDE}.application.maxFailedExecutorsPerNode"

SPARK_CONF_MAX_INT: Final = "2147483647"
SPARK_CONF_MAX_INT_MINUS_ONE: Final = "2147483646"

SPARK_CONF_ALWAYS_RESTART_FAILED_TASK: Final = ("spark.task.maxFailures", SPARK_CONF_MAX_INT)

SPARK_CONF_BLACKLIST_DISABLED: Final = (f"{_EXCLUDE}.enabled", "false")
SPARK_CONF_BLACKLIST_ENABLED: Final = (f"{_EXCLUDE}.enabled", "true")

SPARK_CONF_REUSE_FAILED_EXECUTOR: Final = (_PER_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR: Final = (_PER_EXECUTOR, "1")
SPARK_CONF_REUSE_FAILING_NODE: Final = (_PER_NODE, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_DONT_REUSE_FAILING_NODE: Final = (_PER_NODE, "1")

SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK: Final = (_OF_TASK_PER_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK: Final = (_OF_TASK_PER_EXECUTOR, "2")
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK: Final = (_OF_TASK_PER_EXECUTOR, "1")
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK: Final = (
    _OF_TASK_PER_NODE,
    SPARK_CONF_MAX_INT_MINUS_ONE,
)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK: Final = (_OF_TASK_PER_NODE, "2")
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK: Final = (_OF_TASK_PER_NODE, "1")

SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP: Final = (_IN_APP_PER_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP: Final = (_IN_APP_PER_EXECUTOR, "1")
SPARK_CONF_REUSE_FAILING_NODE_IN_APP: Final = (_IN_APP_PER_NODE, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP: Final = (_IN_APP_PER_NODE, "1")

SPARK_CONF_DEFAULT_VALUES: Final = {
    "spark.task.maxFailures": "4",
    f"{_EXCLUDE}.enabled": "false",
    _PER_EXECUTOR: "2",
    _PER_NODE: "2",
    _OF_TASK_PER_EXECUTOR: "1",
    _OF_TASK_PER_NODE: "2",
    _IN_APP_PER_EXECUTOR: "2",
    _IN_APP_PER_NODE: "2",
}
