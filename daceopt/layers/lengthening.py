"""What a recipe made of a few layers, for all of them: the nodes of one layer are copied for those left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from daceopt.errors import UnequalLayers
from daceopt.ir.control.program import Kind, Program, Role
from daceopt.layers.copies import Copies, KnownLabels
from daceopt.layers.families import Label
from daceopt.layers.node_keys import NodeKeys
from daceopt.layers.shortening import Shortened


class OutputPlace(NamedTuple):
    """``position`` of an input or output of the full graph, for a copy that is ``shift`` layers later."""

    shift: int
    position: int


def lengthen(program: Program, cut: Shortened) -> Program:
    """The program of the full graph, of that of the shorter one. Raises UnequalLayers, with the reason, where what the
    recipe made of a layer is not what it made of the next one."""
    return _Lengthening(program, cut).result()


class _Lengthening:
    """The two graphs of a program with more layers, and what is at their boundaries."""

    def __init__(self, program: Program, cut: Shortened):
        self._short, self._cut, keys = program, cut, NodeKeys()
        self._inputs = cut.short.graph.inputs
        self._positions = {name: role.position for name, role in program.inputs.items()}
        self._forward = Copies(program.forward, cut, keys, 1, self._boundary(), self._names())
        self._backward: Copies | None = None
        if program.backward is not None:
            self._backward = Copies(program.backward, cut, keys, -1, self._backward_boundary(), self._names())

    def result(self) -> Program:
        """The whole program."""
        forward = self._forward.graph()
        program = Program(forward, inputs=dict(self._roles_of_inputs()))
        forward.inputs = sorted(program.inputs, key=lambda name: program.inputs[name].position)
        self._add_outputs(program)
        if self._backward is not None:
            self._add_backward(program)
        self._forward.check_given()
        return program

    # ---------------------------------------------------------------- what arrays at the boundary are

    def _names(self) -> dict[Label, str]:
        """Inputs of the full graph have the names that they have there."""
        return {label: n for label, n in self._cut.member.items() if label.family in self._cut.own_inputs}

    def _input_label(self, position: int) -> Label | None:
        """Of an input of the shorter graph that each layer has for itself."""
        label = self._cut.label_of.get(self._inputs[position])
        return label if label is not None and label.family in self._cut.own_inputs else None

    def _input_labels(self, roles: Mapping[str, Role]) -> dict[str, Label]:
        labels = {n: self._input_label(r.position) for n, r in roles.items() if r.kind is Kind.INPUT}
        return {name: label for name, label in labels.items() if label is not None}

    def _boundary(self) -> KnownLabels:
        """What is known of the arrays of the forward graph."""
        outputs = self._short.forward.outputs
        results = {name: self._output_label(k) for k, name in enumerate(outputs)}
        labels = {name: label for name, label in results.items() if label is not None}
        return KnownLabels(self._input_labels(self._short.inputs), self._cut.rows, labels)

    def _backward_boundary(self) -> KnownLabels:
        """What is known of the arrays of the backward graph, by the forward graph."""
        program, label_of = self._short, self._forward.label_of
        forward, backward = program.forward, program.backward
        assert backward is not None
        labels = self._input_labels(program.received)
        of_outputs = {n: forward.outputs[r.position] for n, r in program.received.items() if r.kind is Kind.OUTPUT}
        same = {name: name for name in program.received}
        twins = {**same, **of_outputs, **dict(zip(backward.saved, forward.saved, strict=True))}
        twin_labels = {name: _label_of(label_of[twin], "kept") for name, twin in twins.items() if twin in label_of}
        for name, role in program.received.items():
            label = self._output_label(role.position) if role.kind is Kind.GRADIENT_OF_OUTPUT else None
            labels |= {} if label is None else {name: _label_of(label, "gradient")}
        rows = {f"kept {family}": row for family, row in self._forward.rows.items()}
        results = {n: self._input_label(r.position) for n, r in zip(backward.outputs, program.returned, strict=True)}
        labelled = {name: label for name, label in results.items() if label is not None}
        return KnownLabels(twin_labels | labels, rows | self._cut.rows, labelled)

    def _output_label(self, position: int) -> Label | None:
        """Of an output of the shorter graph that each layer has for itself."""
        return self._cut.output_labels[position]

    def _place_of_input(self, position: int, shift: int) -> int:
        """The position in the full graph of an input of the shorter one, or of what is that ``shift`` layers later."""
        label = self._input_label(position)
        return self._cut.position(self._inputs[position] if label is None else self._later(label, shift))

    def _later(self, label: Label, shift: int) -> str:
        name = self._cut.member.get(label._replace(layer=label.layer + shift))
        if name is None:
            raise UnequalLayers(f"there is no layer {label.layer + shift} of {label.family}")
        return name

    def _places_of_output(self, position: int) -> list[OutputPlace]:
        """Where an output of the shorter graph, and its copies, are in the full one."""
        name, label = self._short.forward.outputs[position], self._output_label(position)
        if label is None:
            shift = 0 if self._cut.is_before_layers(self._cut.short.graph.outputs[position]) else self._cut.dropped
            return [OutputPlace(shift, self._cut.output_positions[position])]
        shifts = self._forward.shifts(name)
        outputs = self._cut.full.graph.outputs
        return [OutputPlace(shift, outputs.index(self._later(label, shift))) for shift in shifts]

    # ---------------------------------------------------------------- the program

    def _roles_of_inputs(self) -> Iterator[tuple[str, Role]]:
        """Inputs of the full graph; those of all layers, where those of some are read."""
        families = {label.family for k in self._positions.values() if (label := self._input_label(k)) is not None}
        for name, position in self._positions.items():
            if self._input_label(position) is None:
                yield self._forward.name(name, 0), Role(Kind.INPUT, self._place_of_input(position, 0))
        for label, name in self._names().items():
            if label.family in families:
                self._forward.declare(label)
                yield name, Role(Kind.INPUT, self._cut.position(name))

    def _add_outputs(self, program: Program) -> None:
        """Outputs of the forward graph, and which of them are new values of inputs."""
        graph, short = program.forward, self._short.forward
        names: dict[int, str] = {}
        for k, name in enumerate(short.outputs):
            for shift, position in self._places_of_output(k):
                names[position] = self._forward.name(name, shift)
                if k in short.replaced:
                    graph.replaced[position] = self._cut.full.graph.replaced[position]
        if sorted(names) != list(range(len(self._cut.full.graph.outputs))):
            raise UnequalLayers("an output of a layer is missing")
        for position in sorted(names):
            graph.add_output(names[position])

    def _add_backward(self, program: Program) -> None:
        copies, short = self._backward, self._short
        assert copies is not None and short.backward is not None
        program.backward = graph = copies.graph()
        program.received = dict(self._roles_of_received())
        self._add_saved(program)
        graph.inputs = [*program.received, *graph.saved]
        for name, role in zip(short.backward.outputs, short.returned, strict=True):
            for shift in copies.shifts(name, self._input_label(role.position)):
                graph.add_output(copies.name(name, shift))
                program.returned.append(Role(role.kind, self._place_of_input(role.position, shift)))
        self._check_gradients([role.position for role in program.returned])
        copies.check_given()

    def _check_gradients(self, positions: Sequence[int]) -> None:
        """Raise UnequalLayers unless each input has one gradient, and all layers have those that one of them has."""
        inputs = self._cut.full.graph.inputs
        labels = [label for k in positions if (label := self._cut.label_of.get(inputs[k])) is not None]
        rows = {family: [label.layer for label in labels if label.family == family] for family, _ in labels}
        complete = all(sorted(row) == list(range(min(row), max(row) + 1)) for row in rows.values())
        if len({*positions}) != len(positions) or not complete:
            raise UnequalLayers("a gradient of a layer is computed twice, or not at all")

    def _add_saved(self, program: Program) -> None:
        """What the forward graph leaves for the backward graph."""
        copies, short = self._backward, self._short
        assert copies is not None and short.backward is not None and program.backward is not None
        for name, twin in zip(short.forward.saved, short.backward.saved, strict=True):
            for shift in self._forward.shifts(name):
                program.forward.saved.append(self._forward.name(name, shift))
                program.backward.saved.append(copies.name(twin, shift))

    def _roles_of_received(self) -> Iterator[tuple[str, Role]]:
        """What the backward graph gets of the call."""
        copies = self._backward
        assert copies is not None
        for name, role in self._short.received.items():
            if role.kind is Kind.INPUT:
                yield from self._received_inputs(name, role)
            else:
                for shift, position in self._places_of_output(role.position):
                    yield copies.name(name, shift), Role(role.kind, position)

    def _received_inputs(self, name: str, role: Role) -> Iterator[tuple[str, Role]]:
        copies, label = self._backward, self._input_label(role.position)
        assert copies is not None
        if label is None:
            yield copies.name(name, 0), Role(role.kind, self._place_of_input(role.position, 0))
            return
        copies.declare(label)  # also where it is given for its size alone
        for member in copies.declared_members(label.family):
            yield copies.name_of(member), Role(role.kind, self._cut.position(self._cut.member[member]))


def _label_of(label: Label, kind: str) -> Label:
    """A family of its own in the backward graph."""
    return label._replace(family=f"{kind} {label.family}")
