"""Which machine this is."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from lockstitch.link import machine
from lockstitch.link.machine import host_identity


def report(pipe) -> None:
    pipe.send(host_identity())
    pipe.close()


def test_two_processes_on_one_machine_agree():
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=report, args=(there,))
    child.start()
    assert here.recv() == host_identity()
    child.join()
    for end in (here, there):
        end.close()
    child.close()


def test_another_boot_or_another_network_namespace_is_another_host(monkeypatch, tmp_path):
    identities = {host_identity.__wrapped__()}
    (tmp_path / "boot_id").write_text("another boot\n")
    monkeypatch.setattr(machine, "_BOOT_ID", tmp_path / "boot_id")
    identities.add(host_identity.__wrapped__())
    (tmp_path / "net").symlink_to("net:[1]")
    monkeypatch.setattr(machine, "_NETWORK_NAMESPACE", str(tmp_path / "net"))
    identities.add(host_identity.__wrapped__())
    assert len(identities) == 3


def test_without_proc_there_is_still_an_identity(monkeypatch):
    monkeypatch.setattr(machine, "_BOOT_ID", Path("/no/such/file"))
    assert host_identity.__wrapped__()
