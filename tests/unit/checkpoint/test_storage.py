"""A folder of this host and one of a store do the same."""

from __future__ import annotations

import uuid

import pytest

from lockstitch.checkpoint.storage import LocalFolder, StoreFolder, open_folder


@pytest.fixture(params=["path", "file", "memory"])
def folder(request, tmp_path):
    addresses = {
        "path": str(tmp_path / "a" / "b"),
        "file": f"file://{tmp_path}/a/b",
        "memory": f"memory://{uuid.uuid4().hex}/b",
    }
    return open_folder(addresses[request.param])


def text_of(folder, name: str) -> str:
    with folder.opened(name) as path:
        return path.read_text()


def test_files_are_written_replaced_listed_and_removed(folder) -> None:
    assert folder.names() == []
    folder.create()
    folder.create()
    folder.write("one", lambda path: path.write_text("1"))
    folder.replace("two", "2")
    folder.replace("two", "22")
    assert sorted(folder.names()) == ["one", "two"]
    assert (text_of(folder, "one"), text_of(folder, "two")) == ("1", "22")
    assert text_of(open_folder(folder.address), "two") == "22"
    folder.remove("one")
    folder.remove("one")
    assert folder.names() == ["two"]
    with pytest.raises(FileNotFoundError, match="one is not there"), folder.opened("one"):
        pass


def test_an_address_names_a_store_and_anything_else_a_path(tmp_path) -> None:
    assert isinstance(open_folder(tmp_path), LocalFolder)
    assert isinstance(open_folder("memory://x"), StoreFolder)
    assert open_folder("relative").address.startswith("/")
    with pytest.raises(ValueError, match="no such protocol"):
        open_folder("no such protocol://x")
