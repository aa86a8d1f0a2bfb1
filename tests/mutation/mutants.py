"""Mutants: a module's source with one comparison, operator or constant changed.

Left out are annotations, type aliases, decorators, docstrings and the texts of messages, which decide nothing.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module.

    Attributes:
        module: its dotted name.
        function: qualified name of the function or class around the change; empty at the top of the module.
        change: the changed expression before and after, as source.
        nth: which of the function's expressions with the same change it is, from 0.
        number: the mutant's number within its module.
        line: the line of the change.
        first_line, last_line: the lines of the statement around it; of a compound one, those before its body.
    """

    module: str
    function: str
    change: str
    nth: int
    number: int
    line: int
    first_line: int
    last_line: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What names the mutant while other parts of its module change."""
        return self.module, self.function, self.change, self.nth

    def __str__(self) -> str:
        place = f"{self.module.replace('.', '/')}.py:{self.line}"
        return f"{place} {self.function or '(module)'}: {self.change}"


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of the source."""
    return [mutant for mutant, _ in _mutations(module, source, None)]


def mutated(module: str, source: str, number: int) -> ast.Module:
    """Return the syntax tree of the module's mutant of this number. Raise `KeyError` if there is none."""
    for _, tree in _mutations(module, source, number):
        if tree is not None:
            return tree
    raise KeyError(f"{module} has no mutant {number}")


def source_path(root: Path, module: str) -> Path:
    """Return the path of a module's source below the repository's root."""
    return root / (module.replace(".", "/") + ".py")


def _mutations(module: str, source: str, wanted: int | None) -> Iterator[tuple[Mutant, ast.Module | None]]:
    tree = ast.parse(source)
    number = 0
    known: Counter[tuple[str, str]] = Counter()
    places = list(_places(tree, ()))
    around = {id(node): statement for statement, node in _statements(tree)}
    for function, node in places:
        first_line, last_line = _lines_of(around[id(node)])
        for swap in list(_swaps(node)):
            before = ast.unparse(node)
            swap.apply()
            change = f"{before}  →  {ast.unparse(node)}"
            nth = known[function, change]
            known[function, change] += 1
            mutant = Mutant(module, function, change, nth, number, node.lineno, first_line, last_line)
            yield mutant, tree if number == wanted else None
            swap.undo()
            number += 1


def _statements(tree: ast.Module) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Yield every node with the innermost statement around it."""
    inner: list[tuple[ast.stmt, ast.AST]] = [(statement, statement) for statement in tree.body]
    while inner:
        statement, node = inner.pop()
        yield statement, node
        inner += ((child if isinstance(child, ast.stmt) else statement, child) for child in ast.iter_child_nodes(node))


def _lines_of(statement: ast.stmt) -> tuple[int, int]:
    """Return the lines of a statement without those of its body; of a `match`, all lines, as it has no body."""
    body = getattr(statement, "body", None)
    last_line = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, last_line)


def _places(node: ast.AST, around: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
    """Yield every expression that may change, with the name of the function or class around it."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        children = value if isinstance(value, list) else [value]
        for position, child in enumerate(children):
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise):
                continue
            if name == "body" and position == 0 and _is_docstring(child):
                continue
            inner = around
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*around, child.name)
            if _is_union(child):
                continue
            if isinstance(child, ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp | ast.Constant):
                yield ".".join(around), child
            yield from _places(child, inner)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_union(node: ast.AST) -> bool:
    """Whether it is a union of types: `A | B`, or `A | None`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return all(_is_union(side) or _is_type(side) for side in (node.left, node.right))
    return False


def _is_type(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr[:1].isupper()
    return (isinstance(node, ast.Name) and node.id[:1].isupper()) or (
        isinstance(node, ast.Constant) and node.value is None
    )


class _Swap:
    """Sets one field of a node, and sets it back."""

    def __init__(self, node: ast.AST, field: str, value: object) -> None:
        self._node, self._field, self._value, self._before = node, field, value, getattr(node, field)

    def apply(self) -> None:
        setattr(self._node, self._field, self._value)

    def undo(self) -> None:
        setattr(self._node, self._field, self._before)


def _swaps(node: ast.AST) -> Iterator[_Swap]:
    match node:
        case ast.Compare(ops=ops):
            for position, operator in enumerate(ops):
                other = _COMPARISONS[type(operator)]()
                yield _Swap(node, "ops", [*ops[:position], other, *ops[position + 1 :]])
        case ast.BinOp(op=operator) if type(operator) in _OPERATORS:
            yield _Swap(node, "op", _OPERATORS[type(operator)]())
        case ast.BoolOp(op=operator):
            yield _Swap(node, "op", ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield _Swap(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.Constant(value=bool() as value):
            yield _Swap(node, "value", not value)
        case ast.Constant(value=int() | float() as value):
            yield _Swap(node, "value", value + 1)
