"""`lockstitch.hvd.spark` and its modules, as programs of `horovod.spark` import them."""

from __future__ import annotations

import importlib
import sys
import types

import pytest

import lockstitch.spark
from lockstitch.spark.task import DEVICES


@pytest.fixture(autouse=True)
def spark(monkeypatch):
    """As where PySpark is installed."""
    for name in [name for name in sys.modules if name.startswith("lockstitch.hvd.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", types.ModuleType("pyspark"))
    yield importlib.import_module("lockstitch.hvd.spark")
    for name in [name for name in sys.modules if name.startswith("lockstitch.hvd.spark")]:
        del sys.modules[name]


def test_run_is_that_of_the_engine(spark):
    assert spark.run is lockstitch.spark.run


def test_devices_are_those_that_spark_has_given(spark, monkeypatch):
    task = importlib.import_module("lockstitch.hvd.spark.task")
    monkeypatch.delenv(DEVICES, raising=False)
    assert task.get_available_devices() == []
    monkeypatch.setenv(DEVICES, "1,3")
    assert task.get_available_devices() == ["1", "3"]
    monkeypatch.setenv("USE_DEFAULT_GPU_INDEX", "1")
    assert task.get_available_devices() == []


def test_settings_are_pairs_of_names_that_spark_knows(spark):
    conf = importlib.import_module("lockstitch.hvd.spark.conf")
    assert conf.SPARK_CONF_ALWAYS_RESTART_FAILED_TASK == ("spark.task.maxFailures", "2147483647")
    pairs = [value for name, value in vars(conf).items() if isinstance(value, tuple)]
    assert len(pairs) == 17
    assert {name for name, _ in pairs} == set(conf.SPARK_CONF_DEFAULT_VALUES)


@pytest.mark.parametrize("name", ["torch", "lightning", "common"])
def test_what_is_not_there_says_what_to_do(spark, name):
    with pytest.raises(ImportError, match=r"no estimators .* lockstitch\.hvd\.spark\.run"):
        importlib.import_module(f"lockstitch.hvd.spark.{name}")
