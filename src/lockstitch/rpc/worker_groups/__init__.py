"""Many workers as one.

selection.py   which workers are meant, by names, patterns, ranks and infos
group.py       Group and `group`: a set of workers that is called as one
calls.py       what a group and the references of a group have in common: ways of calling all
future.py      the results of all: GroupFuture, and how failures of some are told
arrivals.py    futures in the order in which they complete
references.py  RRefGroup: a value on each of the workers
work_list.py   who gets which item of a `map` next (no messages)
mapping.py     `map`: hands the items out
reductions.py  one result made of those of all
streams.py     Stream: what a generator on another worker yields, here
sources.py     such a generator on its worker, on a thread of its own
merging.py     GroupStream: the streams of all, as their items come
"""
