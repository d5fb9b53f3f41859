"""What torch's registry of operators has to say of arguments that an operator does not take.

Called from Python, an operator answers unfit arguments with a `TypeError` of its own wording. The
incumbent asks the registry instead, and programs know those words; here both are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.errors import OperatorArgumentsError, without_traceback
from lockstitch.torch_internals.calls import find_operator, operation_of

if TYPE_CHECKING:
    from collections.abc import Callable


def explain(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError
) -> TypeError:
    """The error to raise instead of `error`, which `function(*args, **kwargs)` has raised: another
    one if `function` is an operator and no schema of it takes the arguments."""
    name = find_operator(function)
    if name is None:
        return error
    try:
        operator, _ = operation_of(name)
        operator(*args, **kwargs)
    except RuntimeError as explanation:
        if "failed to match any schema" in str(explanation):
            lines = dict.fromkeys(str(explanation).splitlines())  # it names many schemas twice
            text = "\n".join([*filter(None, lines), str(error)])
            explained = OperatorArgumentsError(text)
            explained.__cause__ = without_traceback(error)  # no more than this very call
            return explained
    return error
