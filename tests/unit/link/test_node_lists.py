from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.link.node_lists import counts, node_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1 n2"),
        ("node[01-03,7]", "node01 node02 node03 node7"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[099-101]", "n099 n100 n101"),
        ("gpu[1-2],cpu[08-10],login", "gpu1 gpu2 cpu08 cpu09 cpu10 login"),
        ("rack[1-2]-n[01,3]", "rack1-n01 rack1-n3 rack2-n01 rack2-n3"),
        ("n[1-2].example.org", "n1.example.org n2.example.org"),
        ("rack-2-n[010,12]", "rack-2-n010 rack-2-n12"),
    ],
)
def test_names_in_a_list_of_nodes(text, names):
    assert list(node_names(text, "NODES")) == names.split()


@pytest.mark.parametrize(
    "text", ["", "n[", "n[]", "n[1", "n1,", "n[3-1]", "n[a]", "n1 n2", "n[1-]"]
)
def test_what_is_no_list_of_nodes_is_refused_by_the_name_of_its_variable(text):
    with pytest.raises(ValueError, match="NODES=.* is no list of nodes"):
        list(node_names(text, "NODES"))


@pytest.mark.parametrize(
    ("text", "numbers"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2)", [1, 2, 2])]
)
def test_counts_of_nodes(text, numbers):
    assert counts(text, "TASKS") == numbers


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "1,,2", "-1"])
def test_what_is_no_list_of_counts_is_refused(text):
    with pytest.raises(ValueError, match="TASKS=.* is no list of counts"):
        counts(text, "TASKS")


@given(st.sets(st.integers(0, 400), min_size=1), st.integers(1, 4))
def test_numbers_that_slurm_has_folded_into_ranges_come_back(numbers, width):
    """Ranges of neighbours, as wide as their first number."""
    folded: list[list[int]] = []
    for number in sorted(numbers):
        if folded and folded[-1][-1] == number - 1:
            folded[-1].append(number)
        else:
            folded.append([number])
    ranges = ",".join(f"{run[0]:0{width}}-{run[-1]:0{width}}" for run in folded)
    expected = [f"n{number:0{len(f'{run[0]:0{width}}')}}" for run in folded for number in run]
    assert list(node_names(f"n[{ranges}]", "NODES")) == expected
