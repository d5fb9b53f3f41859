"""Whole programs: those of `examples/`, with nothing but their imports changed.

Each is loaded from its file, with our imports replaced by the incumbent's where that is what is
measured, and its own training function is timed, per step.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from benchmarks.cases.timing import Sample, timed
from benchmarks.libraries import CALLEE, CALLER, LOCKSTITCH, THIRD

if TYPE_CHECKING:
    from benchmarks.libraries import Library

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("parameter_server", "rnn_language_model", "pipeline", "actor_learner", "recommender")
PIPELINE_STEPS, LANGUAGE_STEPS = 10, 10


def install(library: Library) -> None:
    """Runs in each process of a world: makes the examples importable, and quiet."""
    for name in NAMES:
        module = ModuleType(_module_name(name))
        source = with_imports_of(library.name, (EXAMPLES / f"{name}.py").read_text())
        sys.modules[module.__name__] = module
        exec(compile(source, f"{name}.py", "exec"), vars(module))
        vars(module)["print"] = _say_nothing
        if "load_digits" in vars(module):  # else most of a short run is parsing their file
            vars(module)["load_digits"] = functools.cache(vars(module)["load_digits"])


def with_imports_of(library: str, source: str) -> str:
    """The example as a program of `library`."""
    if library == LOCKSTITCH:
        return source
    source = source.replace("import hvd, rpc", "import rpc")  # it has nothing of the kind
    source = re.sub(r"^import lockstitch\.", f"import {library}.", source, flags=re.MULTILINE)
    return re.sub(
        r"^from lockstitch(\.\w+)? import",
        lambda match: f"from {library}{match[1] or ''} import",
        source,
        flags=re.MULTILINE,
    )


def _module_name(name: str) -> str:
    return f"benchmarked_{name}"


def example_of(name: str) -> Any:
    return sys.modules[_module_name(name)]


def _say_nothing(*_words: object, **_options: object) -> None:
    pass


def parameter_server(_library: Library, trainers: int) -> Sample:
    """One epoch of each trainer; seconds per step of any of them."""
    example = example_of("parameter_server")
    images = len(example.digits()[1]) - example.TEST_IMAGES
    steps = sum(-(-len(range(part, images, trainers)) // example.BATCH) for part in range(trainers))
    names = [CALLEE, THIRD][:trainers]
    return timed(lambda: example.serve(names, 1), steps)


def language_model(_library: Library) -> Sample:
    example = example_of("rnn_language_model")
    text, _vocabulary = example.read_text()
    model = example.LanguageModel(CALLEE)
    return timed(lambda: example.train(model, text, LANGUAGE_STEPS), LANGUAGE_STEPS)


def pipeline(_library: Library) -> Sample:
    """The example runs its twin in one process beside it, which is part of what is timed."""
    example = example_of("pipeline")
    stages = [CALLER, CALLEE, THIRD]
    return timed(lambda: example.train(stages, PIPELINE_STEPS), PIPELINE_STEPS)


def actor_learner(_library: Library) -> Sample:
    """One round with two actors; a step is one question of each, and one answer to both."""
    example = example_of("actor_learner")
    return timed(lambda: example.train([CALLEE, THIRD], 1), example.STEPS)
