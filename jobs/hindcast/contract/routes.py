"""The routes on which a record reaches a kafka view, and the order in which Kafka Streams takes them.

A record is processed by one node of its sub-topology after the other, depth first: the result of a node goes all the
way down the node's first child, then down the second, in the order in which nodes were added to the topology. Records
of a repartition topic come after all of that. So the place of a processing step is the path to it:

    [hops, edge, emission, edge, emission, ...]

`hops` counts the repartition topics on the way, an edge says which child (of views in the order of the contract, the
first input before the second), an emission which of the records that the node above emitted for one. Places compare as
lists do: a node puts a row in its store before anything below it is processed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindcast.contract.model import Contract


class Edge(NamedTuple):
    """The way from an input into a view: its number among all, and whether it goes through a repartition topic."""

    number: int
    is_repartitioned: bool


Route = tuple[Edge, ...]
"""The edges on the way from a topic to a view."""


class StorePlace(NamedTuple):
    """The store with the rows of an input, where a look-up finds them: its own if it has no `parts`.

    Otherwise the input stores no rows, and a look-up goes on to its own inputs: a transformation has one part, a
    join of tables one for each side.
    """

    parts: tuple[StorePlace, ...] = ()


class Routes:
    """The routes of a contract. `depth_first`: the kafka views whose records are processed in order of their places.

    Those are the views that a record reaches, or finds a row in, on two routes of which the longer one may come first,
    and views derived from them. All others process a record before the results of other views, which is the same order:
    there is one route, or the longer one goes through more repartition topics.

    `telling`: those of them that emit with each change the value before it. A join emits the old value of the side
    that changes with the current value of the other. If one record changes both, the join did not emit that last.
    """

    def __init__(self, contract: Contract) -> None:
        self._views = contract.views
        self._nodes = {name: number for number, name in enumerate(_order_views(contract))}
        self._routes: dict[str, dict[tuple[str, int], Route]] = {name: {(name, 0): ()} for name in contract.topics}
        self._puts = dict.fromkeys(contract.topics, StorePlace())
        depth_first, telling = set[str](), set[str]()
        for name in (name for name in contract.ordered_views if contract.views[name].semantics == "kafka"):
            self._puts[name] = self._find_view_place(name)
            if depth_first.intersection(contract.views[name].inputs) or self._has_unordered_routes(name):
                depth_first.add(name)
                if self._has_previous_values(name, telling):
                    telling.add(name)
            else:
                self._routes[name] = self._find_routes_to(name)
        self.depth_first, self.telling = frozenset(depth_first), frozenset(telling)

    def find_edge(self, name: str, side: int) -> Edge:
        """Return the edge from an input, by its side, into a view."""
        view = self._views[name]
        on = view.join.on if view.join is not None else None
        if side == 0 and view.table:
            hops = view.aggregate is not None or on is not None
        else:
            hops = side == 0 and (view.group_by is not None or view.key is not None or on is not None)
        # The result of a foreign-key join comes back from where the right row is.
        return Edge(2 * self._nodes[name] + side, hops or self._is_foreign_key_join(view.inputs[side]))

    def find_routes(self, name: str) -> Mapping[tuple[str, int], Route]:
        """Return the routes to a topic, or to a kafka view that is not depth first, by their first topic and their
        length: that of `turn` in the order of what the view emits.
        """
        return self._routes[name]

    def find_store_place(self, name: str) -> StorePlace:
        """Return the store with the rows of a topic or kafka view that is read as a table."""
        return self._puts[name]

    def _find_view_place(self, name: str) -> StorePlace:
        view = self._views[name]
        if view.aggregate is not None or view.suppress is not None or view.history_retention is not None:
            return StorePlace()
        return (
            StorePlace()
            if self._is_foreign_key_join(name)
            else StorePlace(tuple(self._puts[source] for source in view.inputs))
        )

    def _find_routes_to(self, name: str) -> dict[tuple[str, int], Route]:
        view, routes = self._views[name], dict[tuple[str, int], Route]()
        for side, source in enumerate(view.inputs):
            if side == 1 and view.stream and view.join is not None and view.join.table:
                continue  # a table's row is looked up, and makes no result
            edge = self.find_edge(name, side)
            routes |= {(topic, length + 1): (*route, edge) for (topic, length), route in self._routes[source].items()}
        return routes

    def _has_previous_values(self, name: str, telling: set[str]) -> bool:
        """Return whether a table passes on old values without a store. `telling`: such views before it."""
        view = self._views[name]
        if view.table is None or view.aggregate is not None or view.suppress is not None:
            return False
        return not self._is_foreign_key_join(name) if view.join is not None else view.first_input in telling

    def _has_unordered_routes(self, name: str) -> bool:
        """Return whether two routes into a join begin at one topic and do not come in the order of their lengths."""
        if self._views[name].join is None:
            return False
        first, second = (self._find_routes_into(name, side) for side in (0, 1))
        # The result of a foreign-key join for a record of both its tables is more than a matter of order.
        always = self._is_foreign_key_join(name)
        return any(
            always or not _are_in_order(one, other)
            for topic in first.keys() & second.keys()
            for one in first[topic]
            for other in second[topic]
        )

    def _find_routes_into(self, name: str, side: int) -> dict[str, list[Route]]:
        """Return the routes through an input into a view, by the topic that they begin at."""
        routes, edge = dict[str, list[Route]](), self.find_edge(name, side)
        for (topic, _), route in self._routes[self._views[name].inputs[side]].items():
            routes.setdefault(topic, []).append((*route, edge))
        return routes

    def _is_foreign_key_join(self, name: str) -> bool:
        view = self._views.get(name)
        return view is not None and view.table is not None and view.join is not None and view.join.on is not None


def _are_in_order(first: Route, second: Route) -> bool:
    """Return whether the shorter of two routes comes first: it goes through fewer repartition topics."""
    shorter, longer = sorted((first, second), key=len)
    return len(shorter) < len(longer) and sum(edge.is_repartitioned for edge in shorter) < sum(
        edge.is_repartitioned for edge in longer
    )


def _order_views(contract: Contract) -> list[str]:
    """Return the views as their nodes are added: in the order of the contract, but each after its inputs."""
    ordered = dict[str, None]()
    for name in contract.views:
        pending = [name]
        while pending:
            missing = [i for i in contract.views[pending[-1]].inputs if i in contract.views and i not in ordered]
            if missing:
                pending.append(missing[0])
            else:
                ordered[pending.pop()] = None
    return list(ordered)
