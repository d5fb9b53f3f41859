"""Files are a checkpoint from the moment in which the manifest says so."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest
import torch

from lockstitch.checkpoint.shards import (
    fetch,
    read_manifest,
    read_shard,
    remove_failed,
    write_manifest,
    write_shard,
)
from lockstitch.checkpoint.storage import open_folder
from lockstitch.checkpoint.structure import Stored, copy_states

FIRST, SECOND = "1" * 32, "2" * 32
STATES = {"model": {"w": torch.arange(4.0)}, "steps": {"n": 3, "seen": (1, None)}}


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path)


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written_is_read(folder, tmp_path) -> None:
    shard = write_shard(folder, FIRST, "ps:0", copy_states(STATES))
    write_manifest(folder, [shard])
    assert read_manifest(folder) == [shard]
    assert shard.names == ("model", "steps")
    read = read_shard(folder, shard, ["steps", "model"])
    assert read["steps"] == STATES["steps"]
    assert torch.equal(read["model"]["w"], STATES["model"]["w"])
    assert read_shard(folder, shard, ["steps"]).keys() == {"steps"}


def test_what_a_state_has_in_two_places_is_one_tensor_again(folder) -> None:
    shared = torch.ones(2)
    states = {"a": [shared, shared, torch.ones(2)], "b": [Stored("ps", "a.0"), Stored("ps", "a.0")]}
    shard = write_shard(folder, FIRST, "ps", copy_states(states))
    first, second, other = read_shard(folder, shard, ["a"])["a"]
    assert first is second is not other
    found = fetch(folder, [shard], read_shard(folder, shard, ["b"])["b"])
    assert found[0] is found[1]


def test_the_former_checkpoint_stands_until_the_manifest_is_replaced(folder, tmp_path) -> None:
    first = write_shard(folder, FIRST, "a", copy_states(STATES))
    write_manifest(folder, [first])
    second = write_shard(folder, SECOND, "a", copy_states({"model": {"w": torch.zeros(1)}}))
    assert read_manifest(folder) == [first]  # as after a crash at this point
    assert read_shard(folder, first, ["steps"])["steps"] == STATES["steps"]
    write_manifest(folder, [second])
    assert read_manifest(folder) == [second]
    assert files(tmp_path) == [second.file, "manifest.json"]


def test_files_of_a_failed_save_go_and_no_others(folder, tmp_path) -> None:
    kept = write_shard(folder, FIRST, "a", copy_states(STATES))
    write_shard(folder, SECOND, "a", copy_states(STATES))
    remove_failed(folder, SECOND)
    assert files(tmp_path) == [kept.file]


def test_files_that_are_the_checkpoint_stay_though_their_save_has_failed(folder, tmp_path) -> None:
    shard = write_shard(folder, FIRST, "a", copy_states(STATES))
    write_manifest(folder, [shard])
    remove_failed(folder, FIRST)
    assert read_shard(folder, shard, ["steps"])["steps"] == STATES["steps"]


def test_a_former_file_that_cannot_be_removed_is_left(folder, tmp_path, monkeypatch) -> None:
    shards = [write_shard(folder, save, "a", copy_states(STATES)) for save in (FIRST, SECOND)]
    monkeypatch.setattr(folder, "remove", Mock(side_effect=PermissionError("somebody else's")))
    for shard in shards:
        write_manifest(folder, [shard])
    assert read_manifest(folder) == [shards[1]]
    monkeypatch.undo()
    write_manifest(folder, [shards[1]])
    assert files(tmp_path) == [shards[1].file, "manifest.json"]


def test_files_of_others_in_the_folder_stay(folder, tmp_path) -> None:
    (tmp_path / "mine.safetensors").write_text("weights of another program")
    shard = write_shard(folder, FIRST, "a", copy_states(STATES))
    write_manifest(folder, [shard])
    assert files(tmp_path) == [shard.file, "manifest.json", "mine.safetensors"]


def test_workers_of_similar_names_write_files_of_their_own(folder, tmp_path) -> None:
    shards = [write_shard(folder, FIRST, name, copy_states({name: 1})) for name in ("a:b", "a_b")]
    write_manifest(folder, shards)
    for name, shard in zip(("a:b", "a_b"), shards, strict=True):
        assert read_shard(folder, shard, [name]) == {name: 1}


def test_two_saves_at_once_do_not_make_a_checkpoint_of_removed_files(folder, tmp_path) -> None:
    first, second = (
        write_shard(folder, save, "a", copy_states(STATES)) for save in (FIRST, SECOND)
    )
    write_manifest(folder, [first])
    with pytest.raises(FileNotFoundError, match="another save into .* one at a time"):
        write_manifest(folder, [second])
    assert read_manifest(folder) == [first]
    assert files(tmp_path) == [first.file, "manifest.json"]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"x"])
def test_a_damaged_file_is_not_read(folder, tmp_path, damage) -> None:
    shard = write_shard(folder, FIRST, "a", copy_states(STATES))
    path = tmp_path / shard.file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="is not the file that was saved"):
        read_shard(folder, shard, ["model"])


def test_a_folder_without_manifest_is_no_checkpoint(folder, tmp_path) -> None:
    write_shard(folder, FIRST, "a", copy_states(STATES))
    with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):
        read_manifest(folder)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "shares": [{}]}'])
def test_another_manifest_is_refused(folder, tmp_path, text) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="no manifest of a checkpoint"):
        read_manifest(folder)


def test_the_manifest_is_for_people_too(folder, tmp_path) -> None:
    write_manifest(folder, [write_shard(folder, FIRST, "a", copy_states(STATES))])
    (shard,) = json.loads((tmp_path / "manifest.json").read_text())["shares"]
    assert shard["worker"] == "a"
    assert shard["names"] == ["model", "steps"]
