from __future__ import annotations

from lockstitch.launch.outputs import Outputs


def test_each_worker_has_a_folder_and_each_stream_a_file(tmp_path):
    with Outputs(tmp_path / "said", workers=12) as outputs:
        outputs.line(3, "stdout", b"one")
        outputs.line(3, "stdout", b"two")
        outputs.line(11, "stderr", b"three")
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("std*")}
    assert files == {"said/rank.03/stdout": b"one\ntwo\n", "said/rank.11/stderr": b"three\n"}
