from __future__ import annotations

import pytest

from lockstitch import hvd
from lockstitch.hvd.runner.launching import _words

NOTHING = dict.fromkeys(
    "num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
    "host_discovery_script start_timeout ssh_port ssh_identity_file output_filename verbose "
    "use_gloo use_mpi np min_np max_np".split()
)


def words(**given):
    return _words({**NOTHING, **given})


def test_arguments_become_the_launchers_options():
    assert words() == ["-np", "1"]
    assert words(hosts="a:2") == ["-H", "a:2"]
    assert words(np=3, min_np=2, num_proc=4) == ["-np", "4", "--min-np", "2"]
    assert words(num_proc=2, cooldown_range=(1, 2), verbose=2) == [
        *("--verbose", "-np", "2"),
        *("--blacklist-cooldown-range", "1", "2"),
    ]


def test_contradictions_are_refused():
    with pytest.raises(ValueError, match="hosts or hostfile"):
        hvd.run(print, hosts="a:1", hostfile="hosts")
    with pytest.raises(ValueError, match="use_gloo or use_mpi"):
        hvd.run(print, use_gloo=True, use_mpi=True)
