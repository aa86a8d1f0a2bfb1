"""Mappings and sets that never change and share what they have in common: one that differs by an item costs little.

A copy of a dictionary takes time that grows with it; the messages of a round, each of which adds an item, would take
time that grows with the square of their number. Here an item is added, replaced or removed in a time that is about the
same for ten items and for ten thousand. The order is that in which the keys were added, as in a dictionary.

The functions `added` and `removed` take any mapping; it is copied once, unless one of them made it.
"""

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from pydantic import WrapSerializer

K = TypeVar("K")
V = TypeVar("V")

_BITS = 6
_WIDTH = 1 << _BITS
_MASK = _WIDTH - 1
_CHUNK = 128
_FEW_HOLES = 16

_Leaf: TypeAlias = dict[Any, int]
_Branch: TypeAlias = list[_Leaf | None]
_Item: TypeAlias = tuple[Any, Any] | None


class SharedMap(Mapping[K, V]):
    """An immutable mapping. Make one with `added` and `removed`.

    Theory of operation. The items lie in chunks, in their order, with holes where some were removed; an index of two
    levels leads from a key's hash to its place. A new mapping copies the chunk and the parts of the index that differ.
    """

    __slots__ = ("_chunks", "_count", "_end", "_first", "_index")

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        whole = list(dict(items).items())
        self._first, self._count, self._end = 0, len(whole), len(whole)
        self._chunks: list[list[_Item]] = [list(whole[start : start + _CHUNK]) for start in range(0, self._end, _CHUNK)]
        self._index: list[_Branch | None] = [None] * _WIDTH
        for place, (key, _) in enumerate(whole):
            self._leaf_of(key)[key] = place

    def _leaf_of(self, key: K) -> _Leaf:
        """Return the part of the index that has the key, made if there is none; only while the mapping is made."""
        high, low = _digits(key)
        branch = self._index[high]
        if branch is None:
            branch = self._index[high] = [None] * _WIDTH
        leaf = branch[low]
        if leaf is None:
            leaf = branch[low] = {}
        return leaf

    def _place_of(self, key: object) -> int | None:
        high, low = _digits(key)
        branch = self._index[high]
        leaf = None if branch is None else branch[low]
        return None if leaf is None else leaf.get(key)

    def __getitem__(self, key: K) -> V:
        place = self._place_of(key)
        if place is None:
            raise KeyError(key)
        item = self._chunks[place // _CHUNK][place % _CHUNK]
        assert item is not None
        value: V = item[1]
        return value

    def __contains__(self, key: object) -> bool:
        return self._place_of(key) is not None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.pairs())

    def __repr__(self) -> str:
        return f"SharedMap({dict(self.pairs())!r})"

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def pairs(self) -> Iterator[tuple[K, V]]:
        """Return keys and values, in their order."""
        number, offset = divmod(self._first, _CHUNK)
        found = (item for chunk in self._chunks[number:] for item in chunk)
        return (item for item in islice(found, offset, None) if item is not None)

    def from_place(self, number: int) -> Iterator[tuple[K, V]]:
        """Return keys and values from item `number` on, counted from 0."""
        if self._count < self._end:
            return islice(self.pairs(), number, None)
        first, offset = divmod(number, _CHUNK)
        return islice((item for chunk in self._chunks[first:] for item in chunk if item is not None), offset, None)

    def with_item(self, key: K, value: V) -> "SharedMap[K, V]":
        """Return the mapping with this item; one with the same key keeps its place and gets the value."""
        place = self._place_of(key)
        made = self._copy()
        if place is not None:
            chunk = made._chunks[place // _CHUNK] = list(made._chunks[place // _CHUNK])
            chunk[place % _CHUNK] = (key, value)
            return made
        if self._end % _CHUNK:
            made._chunks[-1] = [*made._chunks[-1], (key, value)]
        else:
            made._chunks.append([(key, value)])
        made._own_leaf(key)[key] = self._end
        made._end += 1
        made._count += 1
        return made

    def without(self, key: K) -> "SharedMap[K, V]":
        """Return the mapping without this key; itself if it is not there."""
        place = self._place_of(key)
        if place is None:
            return self
        if self._end - self._count > max(self._count, _FEW_HOLES):
            return SharedMap((other, value) for other, value in self.pairs() if other != key)
        made = self._copy()
        chunk = made._chunks[place // _CHUNK] = list(made._chunks[place // _CHUNK])
        chunk[place % _CHUNK] = None
        del made._own_leaf(key)[key]
        made._count -= 1
        while made._first < made._end and made._chunks[made._first // _CHUNK][made._first % _CHUNK] is None:
            made._first += 1
        return made

    def _copy(self) -> "SharedMap[K, V]":
        made: SharedMap[K, V] = SharedMap.__new__(SharedMap)
        made._chunks, made._index = list(self._chunks), self._index
        made._first, made._count, made._end = self._first, self._count, self._end
        return made

    def _own_leaf(self, key: K) -> _Leaf:
        """Return the part of the index that has the key, copied, as are the parts that lead there."""
        high, low = _digits(key)
        self._index = list(self._index)
        branch = self._index[high]
        branch = self._index[high] = [None] * _WIDTH if branch is None else list(branch)
        leaf = branch[low]
        leaf = branch[low] = {} if leaf is None else dict(leaf)
        return leaf


class _Items(ItemsView[K, V]):
    """The items of a mapping, without a search for each."""

    _mapping: SharedMap[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.pairs()


class _Values(ValuesView[V]):
    """The values of a mapping, without a search for each."""

    _mapping: SharedMap[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.pairs())


class SharedSet(AbstractSet[K], Generic[K]):
    """An immutable set. Make one with `joined` and `left`."""

    __slots__ = ("items",)

    def __init__(self, items: SharedMap[K, None]) -> None:
        self.items = items

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> AbstractSet[Any]:
        """Return the result of a set operation."""
        return frozenset(it)

    def __contains__(self, key: object) -> bool:
        return key in self.items

    def __iter__(self) -> Iterator[K]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"SharedSet({set(self.items)!r})"

    def __hash__(self) -> int:
        return self._hash()


def _digits(key: object) -> tuple[int, int]:
    number = hash(key)
    return number & _MASK, number >> _BITS & _MASK


def added(mapping: Mapping[K, V], key: K, value: V) -> SharedMap[K, V]:
    """Return the mapping with this item, as `{**mapping, key: value}` does."""
    return shared(mapping).with_item(key, value)


def removed(mapping: Mapping[K, V], key: K) -> SharedMap[K, V]:
    """Return the mapping without this key, if it has it."""
    return shared(mapping).without(key)


def shared(mapping: Mapping[K, V]) -> SharedMap[K, V]:
    """Return the same mapping as one that shares."""
    return mapping if isinstance(mapping, SharedMap) else SharedMap(mapping.items())


def joined(members: AbstractSet[K], member: K) -> SharedSet[K]:
    """Return the set with this member, as `members | {member}` does."""
    return SharedSet(shared_set(members).items.with_item(member, None))


def left(members: AbstractSet[K], gone: Iterable[K]) -> AbstractSet[K]:
    """Return the set without these, as `members - gone` does; itself if it has none of them."""
    kept = shared_set(members).items
    for member in gone:
        kept = kept.without(member)
    return members if len(kept) == len(members) else SharedSet(kept)


def plain(mapping: Mapping[K, V]) -> dict[K, V]:
    """Return a new dictionary with the items of a mapping: many of them are found faster there."""
    return dict(mapping.pairs()) if isinstance(mapping, SharedMap) else dict(mapping)


def shared_set(members: AbstractSet[K]) -> SharedSet[K]:
    """Return the same set as one that shares."""
    return members if isinstance(members, SharedSet) else SharedSet(SharedMap((member, None) for member in members))


def _plain_mapping(mapping: Mapping[Any, Any], serialize: Any) -> Any:
    return serialize(plain(mapping))


def _plain_set(members: AbstractSet[Any], serialize: Any) -> Any:
    return serialize(frozenset(members))


Mapped: TypeAlias = Annotated[Mapping[K, V], WrapSerializer(_plain_mapping)]
"""A mapping in a snapshot, which may be one that shares."""
Members: TypeAlias = Annotated[AbstractSet[K], WrapSerializer(_plain_set)]
"""A set in a snapshot, which may be one that shares."""
