"""Arms of a comparison, as texts: the same in commands, records and tables.

    rule[:value][,field=value][@drafter[:value][,field=value]]     such as
    exact    fsd:0.3    fsd:0.3,child=target,divergence=tv    path:0.5@eagle:7x3x4    exact@ngram
    exact@language_model:5x5x1
    plain              our loop without drafts
    generate           transformers' own loop on the stock model
    generate_compiled  the same with a static cache and torch.compile

`value` is the first field of the rule (rules.RULES), or of the drafter (DRAFTERS in
drafters/settings.py; without one: the head's, with the run's tree); guards (rules.guards.GUARDS)
are further fields of the rule. A lossy rule on trees that repeat the text (@hybrid) has the guards
no_repeat=3,ends=1 by default; no_repeat=0,ends=0 turns them off. The canonical text states the
value and leaves out other fields that have their default. Alternatives are the shell's braces:
fsd:{0.2,0.3},child={draft,target}.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

from eagle_fsd.arm_names import BY_TRANSFORMERS, PLAIN, about, check_names
from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig, nearest, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.decoding.verified import Guard, Rule
from eagle_fsd.drafters.settings import (
    DEFAULT_DRAFTER,
    DRAFTERS,
    DrafterSettings,
    LoadedModels,
    NoDrafts,
)
from eagle_fsd.rules import RULES
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.rules.guards import GUARDS

NUMBERS = {float: "a number", int: "a whole number"}  # types of fields, in words
# what an entry of a table builds on, and the methods of which it has one of its own
KINDS = {
    "rule": (Rule, ("step", "choose", "begin", "draw_exact")),
    "guard": (Guard, ("allows",)),
    "drafter": (DrafterSettings, ("build",)),
}


@dataclass(frozen=True)
class Arm:
    """A way to answer; its text is canonical."""

    text: str
    rule: Rule | None = None  # None for the arms of transformers
    guards: tuple[Guard, ...] = ()  # as the text states them
    drafter: DrafterSettings = NoDrafts()

    @property
    def slug(self) -> str:
        """The text as a file name: fsd_0.3_child-target__eagle_7x3x4."""
        return re.sub("[:,]", "_", self.text).replace("=", "-").replace("@", "__")

    @property
    def kind(self) -> str:
        return re.split("[:,@]", self.text)[0]

    @property
    def runs_our_loop(self) -> bool:
        return self.rule is not None

    @property
    def drafts(self) -> bool:
        return self.drafter != NoDrafts()

    @property
    def tree(self) -> str:
        """The shape of its trees, "7x3x4", if the arm names one, else ""."""
        return tree_name(self.drafter.shape) if self.drafter.shape else ""

    @property
    def drafted(self) -> str:
        """The drafter's text, "" without drafts: eagle, hybrid:7x3x4."""
        return _named(self.drafter, DRAFTERS) if self.drafts else ""

    @property
    def value(self) -> float | None:
        """The rule's parameter, None if it has none or an infinite one: what a curve is over."""
        values = list(vars(self.rule).values()) if self.drafts else []
        numbers = [v for v in values[:1] if not isinstance(v, str) and math.isfinite(v)]
        return numbers[0] if numbers else None

    @property
    def line(self) -> str:
        """The text without the rule's value: the curve that the arm is a point of."""
        return self.text if self.value is None else re.sub(":[^,@]*", "", self.text, count=1)

    def with_rule(self, rule: Rule) -> "Arm":
        """The same drafter under another rule, without guards."""
        return arm_of(rule, (), self.drafter)

    def with_tree(self, tree: TreeConfig) -> "Arm":
        """The same with trees of this shape."""
        shape = tree_name(replace(tree, keep=0.0, deepen=0.0))
        drafter = replace(self.drafter, tree=shape, keep=tree.keep, deepen=tree.deepen)
        return arm_of(self.rule, self.guards, drafter)

    def policy(self, sampling: SamplingConfig) -> Policy:
        """How drafts are accepted at this sampling. A lossy rule has its drafter's guards where it
        states none of their kind."""
        rule, guards = self.rule or Exact(), {type(guard): guard for guard in self.guards}
        if type(rule) is not Exact:
            guards = {type(guard): guard for guard in self.drafter.default_guards} | guards
        in_order = [guards[kind] for kind in GUARDS.values() if kind in guards]
        return Policy(rule, sampling, tuple(guard for guard in in_order if not guard.off))

    def check(self, sampling: SamplingConfig, drafter: Drafter | None = None) -> None:
        """Refuse, by a BadInput, what has no meaning together: before anything is loaded, and with
        the drafter once it is built, for what its settings do not show."""
        with about(self.text):
            self.policy(sampling).check(drafter or self.drafter)

    def check_answers(self) -> None:
        if not self.runs_our_loop:
            raise BadInput(f"arm {self.text!r} is transformers' own loop: call that")

    def build_drafter(self, model: LoadedModels) -> Drafter:
        """Its drafter; build it once, since a reduced draft vocabulary may be copied for it."""
        drafter = self.drafter.build(model)
        if drafter.max_nodes > model.target.max_positions:
            raise BadInput(
                f"arm {self.text!r}: {drafter.max_nodes - 1} drafts are beyond the target's "
                f"{model.target.max_positions} positions: lower their number"
            )
        return drafter


def parse_arm(text: str, *, tree: str = "") -> Arm:
    """An arm from its text, by a BadInput where it has none. One that states the run's tree is the
    one that states none."""
    if text in (PLAIN, *BY_TRANSFORMERS):
        return Arm(text, Exact() if text == PLAIN else None)
    rule_text, at, drafter_text = text.partition("@")
    check_names(text, RULES, DRAFTERS)
    with about(text):
        rule, guards = _parse(rule_text, RULES, "rule", GUARDS)
        drafter, _ = _parse(drafter_text if at else DEFAULT_DRAFTER, DRAFTERS, "drafter", {})
    if drafter.needs_head and drafter.shape and tree_name(drafter.shape) == tree:
        drafter = replace(drafter, tree="", keep=0.0, deepen=0.0)
    return arm_of(rule, guards, drafter)


def arm_of(rule: Rule, guards: tuple[Guard, ...], drafter: DrafterSettings) -> Arm:
    """The arm of these settings, with its canonical text."""
    limits = [_named(guard, GUARDS).replace(":", "=") for guard in guards]
    text = ",".join([_named(rule, RULES), *limits])
    if (drafted := _named(drafter, DRAFTERS)) != DEFAULT_DRAFTER:
        text += f"@{drafted}"
    return Arm(text, rule, guards, drafter)


def parse_arms(texts: Sequence[str], *, tree: str = "") -> list[Arm]:
    """Arms from their texts, at least one and no two the same."""
    said: dict[Arm, str] = {}
    for text in texts:
        arm = parse_arm(text, tree=tree)
        if arm in said:
            raise BadInput(f"arms {said[arm]!r} and {text!r} are the same: give one of them")
        said[arm] = text
    if not said:
        raise BadInput("no arm is given; such as: plain exact fsd:0.3")
    return list(said)


def check_entry(what: str, name: str, kind: object) -> None:
    """Refuse what is in a table, and no frozen dataclass that arms can state and that does
    something: a misspelt `step` would make a rule exact without a word."""
    base, methods = KINDS[what]
    if not (
        isinstance(kind, type) and base in kind.__mro__ and is_dataclass(kind) and kind.__hash__
    ):
        raise BadInput(f"{what} {name!r} must be a frozen dataclass on {base.__name__}: {kind!r}")
    for field in fields(kind):
        if field.type not in (*NUMBERS, str):
            raise BadInput(
                f"{what} {name!r}: the type of field {field.name} must be float, int or str, and "
                f"be there without `from __future__ import annotations`, got {field.type!r}"
            )
    if what == "guard" and len(fields(kind)) != 1:
        raise BadInput(f"guard {name!r} must have one field, which arms state as {name}=VALUE")
    own = {name for one in kind.__mro__[: kind.__mro__.index(base)] for name in vars(one)}
    if own.isdisjoint(methods):
        meant = next(filter(None, (nearest(each, methods) for each in sorted(own))), "")
        raise BadInput(
            f"{what} {name!r} does nothing: {kind.__name__} overrides none of "
            f"{', '.join(methods)}{meant}"
        )


def _parse(
    text: str, table: dict[str, type], what: str, guards: dict[str, type]
) -> tuple[Any, tuple[Guard, ...]]:
    """An instance of a class of the table, and the guards that further fields name."""
    first, *pairs = text.split(",")
    name, colon, value = first.partition(":")
    check_entry(what, name, table[name])
    # 1. What may be given, and of which type: the class's fields, the first without its name.
    types = {field.name: field.type for field in fields(table[name])}
    if colon:
        pairs = [f"{next(iter(types), '')}={value}", *pairs]
    for guard, kind in guards.items():
        check_entry("guard", guard, kind)
        types[guard] = fields(kind)[0].type
    # 2. What is given.
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in types or key in given:
            every = ", ".join(types) or "none"
            raise BadInput(
                f"{pair!r} is no FIELD=VALUE of {what} {name}, or is given twice; fields: {every}"
            )
        try:
            given[key] = types[key](value)
        except ValueError as error:
            raise BadInput(f"{key} must be {NUMBERS[types[key]]}, got {value!r}") from error
    found = tuple(kind(given.pop(guard)) for guard, kind in guards.items() if guard in given)
    needed = [field.name for field in fields(table[name]) if field.default is MISSING]
    if lacking := [key for key in needed if key not in given]:
        raise BadInput(f"{what} {name} has no default for {', '.join(lacking)}: state it")
    return table[name](**given), found


def _named(settings: Any, table: dict[str, type]) -> str:
    """name[:value][,field=value], without what has its default; a number is always stated."""
    text = next(name for name, kind in table.items() if type(settings) is kind)
    for place, field in enumerate(fields(settings)):
        value = getattr(settings, field.name)
        if value != field.default or (place == 0 and not isinstance(value, str)):
            if isinstance(value, float):
                value = repr(value + 0.0).removesuffix(".0")  # -0 is 0
            text += f",{field.name}={value}" if place else f":{value}"
    return text
