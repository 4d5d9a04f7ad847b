"""The routes on which a record reaches a kafka view, and the order in which Kafka Streams takes them.

A record is processed by one node of its sub-topology after the other, depth first: what a node makes of it goes all the
way down the node's first child, then down the second, in the order in which nodes were added to the topology. What goes
into a repartition topic comes after all of that. So the place of a processing is the way to it:

    [hops, edge, emission, edge, emission, ...]

`hops` counts the repartition topics on the way, an edge says which child (of views in the order of the contract, the
first input before the second), an emission which of the records that the node above has made of one. Places compare as
lists do: a node puts a row in its store before anything below it is processed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindcast.contracts.model import Contract


class Edge(NamedTuple):
    """The way from an input into a view: its number among all, and whether it goes through a repartition topic."""

    number: int
    hops: bool


Route = tuple[Edge, ...]
"""The edges on the way from a topic to a view."""


class Put(NamedTuple):
    """Where the rows of an input are put, which is where a look-up finds them: in its own store if it has no `parts`.

    Otherwise the input keeps no rows, and a look-up goes on to what it is made of: a transformation has one part, a
    join of tables one for each side.
    """

    parts: tuple[Put, ...] = ()


class Routes:
    """The routes of a contract. `depth_first`: the kafka views whose records are processed in order of their places.

    Those are the views that a record reaches, or finds a row in, on two routes of which the longer one may come first,
    and what is made of such views. All others process a record before what other views have made of it, which is the
    same: there is one route, or the longer one goes through more repartition topics.

    `telling`: those of them that tell of each change what was before it. A join tells what the side was that changes,
    with what the other one is by now. Where one record changes both, that is not what the join has told last.
    """

    def __init__(self, contract: Contract) -> None:
        self._views = contract.views
        self._nodes = {name: number for number, name in enumerate(_in_order_of_nodes(contract))}
        self._routes: dict[str, dict[tuple[str, int], Route]] = {name: {(name, 0): ()} for name in contract.topics}
        self._puts = dict.fromkeys(contract.topics, Put())
        found, telling = set[str](), set[str]()
        for name in (name for name in contract.ordered if contract.views[name].semantics == "kafka"):
            self._puts[name] = self._put(name)
            if found.intersection(contract.views[name].inputs) or self._meet(name):
                found.add(name)
                if self._tells(name, telling):
                    telling.add(name)
            else:
                self._routes[name] = self._routes_to(name)
        self.depth_first, self.telling = frozenset(found), frozenset(telling)

    def edge(self, name: str, side: int) -> Edge:
        """Return the edge from an input, by its side, into a view."""
        it = self._views[name]
        on = it.join.on if it.join is not None else None
        if side == 0 and it.table:
            hops = it.aggregate is not None or on is not None
        else:
            hops = side == 0 and (it.group_by is not None or it.key is not None or on is not None)
        # The result of a foreign-key join comes back from where the right row is.
        return Edge(2 * self._nodes[name] + side, hops or self._is_foreign_key_join(it.inputs[side]))

    def of(self, name: str) -> Mapping[tuple[str, int], Route]:
        """Return the routes to a topic, or to a kafka view that is not depth first, by the topic that they begin at and
        their length: that of `turn` in the order of what the view emits.
        """
        return self._routes[name]

    def put(self, name: str) -> Put:
        """Return where the rows of a topic or a kafka view are put that is read as a table."""
        return self._puts[name]

    def _put(self, name: str) -> Put:
        it = self._views[name]
        if it.aggregate is not None or it.suppress is not None or it.history_retention is not None:
            return Put()
        return Put() if self._is_foreign_key_join(name) else Put(tuple(self._puts[source] for source in it.inputs))

    def _routes_to(self, name: str) -> dict[tuple[str, int], Route]:
        it, found = self._views[name], dict[tuple[str, int], Route]()
        for side, source in enumerate(it.inputs):
            if side == 1 and it.stream and it.join is not None and it.join.table:
                continue  # a table's row is looked up, and makes no result
            edge = self.edge(name, side)
            found |= {(topic, length + 1): (*route, edge) for (topic, length), route in self._routes[source].items()}
        return found

    def _tells(self, name: str, telling: set[str]) -> bool:
        """Whether a table passes on what was before, and has no store to say so. `telling`: those views before it."""
        it = self._views[name]
        if it.table is None or it.aggregate is not None or it.suppress is not None:
            return False
        return not self._is_foreign_key_join(name) if it.join is not None else it.first in telling

    def _meet(self, name: str) -> bool:
        """Whether two routes into a join begin at one topic and do not come in the order of their lengths."""
        if self._views[name].join is None:
            return False
        first, second = (self._routes_into(name, side) for side in (0, 1))
        # What a foreign-key join makes of a record of both its tables is more than a matter of order.
        always = self._is_foreign_key_join(name)
        return any(
            always or not _are_in_order(one, other)
            for topic in first.keys() & second.keys()
            for one in first[topic]
            for other in second[topic]
        )

    def _routes_into(self, name: str, side: int) -> dict[str, list[Route]]:
        """The routes through an input into a view, by the topic that they begin at."""
        found, edge = dict[str, list[Route]](), self.edge(name, side)
        for (topic, _), route in self._routes[self._views[name].inputs[side]].items():
            found.setdefault(topic, []).append((*route, edge))
        return found

    def _is_foreign_key_join(self, name: str) -> bool:
        it = self._views.get(name)
        return it is not None and it.table is not None and it.join is not None and it.join.on is not None


def _are_in_order(one: Route, other: Route) -> bool:
    """Whether the shorter of two routes comes first, as it goes through fewer repartition topics."""
    shorter, longer = sorted((one, other), key=len)
    return len(shorter) < len(longer) and sum(edge.hops for edge in shorter) < sum(edge.hops for edge in longer)


def _in_order_of_nodes(contract: Contract) -> list[str]:
    """The views as their nodes are added: in the order of the contract, but each after what it is made of."""
    found = dict[str, None]()
    for name in contract.views:
        below = [name]
        while below:
            missing = [i for i in contract.views[below[-1]].inputs if i in contract.views and i not in found]
            if missing:
                below.append(missing[0])
            else:
                found[below.pop()] = None
    return list(found)
