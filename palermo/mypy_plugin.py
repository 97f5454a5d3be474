"""A mypy plugin that adds `enqueue` and the related methods to classes decorated with `@palermo.job`.

mypy ignores the return type of class decorators. With this in its settings

    [tool.mypy]
    plugins = ["palermo.mypy_plugin"]

it checks the arguments of `enqueue` against the parameters of `process`. Deriving the class from palermo.JobClass has
the same effect without a plugin.
"""

from collections.abc import Callable

from mypy.mro import calculate_mro
from mypy.nodes import TypeInfo
from mypy.plugin import ClassDefContext, Plugin
from mypy.types import Instance

_DECORATORS = frozenset({"palermo.client.decorator.job", "palermo.job"})
_BASE = "palermo.client.decorator.JobClass"


class PalermoPlugin(Plugin):
    """Adds palermo.JobClass to the bases of every decorated class."""

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        return _add_base if fullname in _DECORATORS else None


def _add_base(context: ClassDefContext) -> bool:
    info = context.cls.info
    if any(base.fullname == _BASE for base in info.mro):
        return True
    symbol = context.api.lookup_fully_qualified_or_none(_BASE)
    if symbol is None or not isinstance(symbol.node, TypeInfo):
        return False  # not analysed yet; mypy calls again
    # After all other bases, so that it shadows nothing, but before `object`.
    info.bases = [base for base in info.bases if base.type.fullname != "builtins.object"] + [Instance(symbol.node, [])]
    info.mro = []
    calculate_mro(info, lambda: context.api.named_type("builtins.object", []))
    return True


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls."""
    return PalermoPlugin
