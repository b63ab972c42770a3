"""Arms of a comparison, as texts: the same in commands, records and tables.

    rule[:value][,field=value][@drafter[:value][,field=value]]     such as
    exact    fsd:0.3    fsd:0.3,child=target,divergence=tv    path:0.5@eagle:7x3x4    exact@lookup
    plain              our loop without drafts
    generate           transformers' own loop on the stock model
    generate_compiled  the same with a static cache and torch.compile

`value` is the first field of the rule (rules.RULES), or of the drafter (drafters.DRAFTERS; without
one: the head's, with the run's tree); guards (rules.guards.GUARDS) are further fields of the rule.
The canonical text states the value, leaves out other fields that have their default, and resolves
aliases. Alternatives are the shell's braces: fsd:{0.2,0.3},child={draft,target}.
"""

import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import Drafter, RootDrafter
from eagle_fsd.decoding.rule import Guard, Rule
from eagle_fsd.drafters import DEFAULT_DRAFTER, DRAFTERS, DrafterSettings
from eagle_fsd.drafters.eagle import EagleSettings
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules import RULES
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.rules.guards import GUARDS

PLAIN, GENERATE, COMPILED = "plain", "generate", "generate_compiled"
BASELINES = (GENERATE, PLAIN)
BY_TRANSFORMERS = (GENERATE, COMPILED)
NAMES = {float: "a number", int: "a whole number"}


@dataclass(frozen=True)
class Arm:
    """A way to answer.

    Attributes:
        text: canonical; two arms of one text are one arm.
        rule: acceptance; None for the arms of transformers.
        guards: of the rule.
        drafter: what proposes trees; None: no drafts.
    """

    text: str
    rule: Rule | None = None
    guards: tuple[Guard, ...] = ()
    drafter: DrafterSettings | None = None

    @property
    def slug(self) -> str:
        """The text as a file name: fsd_0.3_child-target__eagle_7x3x4."""
        return re.sub("[:,]", "_", self.text).replace("=", "-").replace("@", "__")

    @property
    def kind(self) -> str:
        """The rule's name, or that of an arm without drafts."""
        return re.split("[:,@]", self.text)[0]

    @property
    def drafts(self) -> bool:
        return self.drafter is not None

    @property
    def runs_our_loop(self) -> bool:
        return self.rule is not None

    @property
    def tree(self) -> str:
        """The shape of its trees, if the arm names one: "7x3x4", "auto", else ""."""
        return getattr(self.drafter, "tree", "")

    @property
    def value(self) -> float | None:
        """The rule's parameter, None if it has none: what a curve is drawn over."""
        first = _value_field(self.rule) if self.drafts else None
        value = getattr(self.rule, first.name) if first else None
        return None if isinstance(value, str) else value

    @property
    def line(self) -> str:
        """The text without the rule's value: the curve that the arm is a point of."""
        if self.value is None:
            return self.text
        return re.sub(":[^,@]*", "", self.text, count=1)

    def policy(self, sampling: SamplingConfig, record: str = "lean") -> Policy:
        return Policy(self.rule or Exact(), sampling, self.guards, record)

    def check(self, sampling: SamplingConfig) -> None:
        """Refuse a sampling with which the arm has no meaning; the drafter is not known yet."""
        self.policy(sampling).rule.check(sampling, None)

    def check_answers(self) -> None:
        """Refuse an arm that cannot answer as it is: of another loop, or with a tree to choose."""
        if not self.runs_our_loop:
            raise BadInput(
                f"arm {self.text!r} is transformers' own loop: call its generate, or lm-eval's "
                "--model hf"
            )
        self.check_tree()

    def check_tree(self) -> None:
        """Refuse a tree that is still to be chosen."""
        if self.tree == "auto":
            raise BadInput(
                f"arm {self.text!r}: give the tree's shape, such as eagle:15x4x6; "
                "evaluate/choose_tree.py finds one"
            )

    def build_drafter(self, model: Model) -> Drafter:
        """Its drafter; build it once, since a reduced draft vocabulary may be copied for it."""
        return self.drafter.build(model) if self.drafts else RootDrafter()

    def with_tree(self, tree: str) -> "Arm":
        """The same arm on trees of another shape; for `auto`, once it is chosen."""
        assert isinstance(self.drafter, EagleSettings), self.text
        return make_arm(self.rule, self.guards, EagleSettings(tree))


def parse_arm(text: str) -> Arm:
    """An arm from its text.

    Raises:
        BadInput: unknown name or field, or a value that it refuses; lists what is known.
    """
    if text in BY_TRANSFORMERS:
        return Arm(text)
    if text == PLAIN:
        return Arm(PLAIN, Exact())
    rule_text, at, drafter_text = text.partition("@")
    try:
        rule, guards = _parse(rule_text, RULES, "rule", GUARDS)
        drafter, _ = _parse(drafter_text if at else DEFAULT_DRAFTER, DRAFTERS, "drafter", {})
    except BadInput as error:
        raise BadInput(f"arm {text!r}: {error}") from error
    return make_arm(rule, guards, drafter)


def parse_arms(texts: Sequence[str]) -> list[Arm]:
    """Arms from their texts, in order.

    Raises:
        BadInput: see parse_arm; two texts say the same arm.
    """
    arms: dict[str, Arm] = {}
    said: dict[str, str] = {}
    for text in texts:
        arm = parse_arm(text)
        if arm.text in arms:
            raise BadInput(f"arms {said[arm.text]!r} and {text!r} are the same: give one of them")
        arms[arm.text], said[arm.text] = arm, text
    if not arms:
        raise BadInput("no arm is given; such as: plain exact fsd:0.3")
    return list(arms.values())


def make_arm(rule: Rule, guards: Sequence[Guard], drafter: DrafterSettings) -> Arm:
    """An arm of our loop with drafts, its text made from its parts."""
    text = _written(rule, RULES)
    names = {kind: name for name, kind in GUARDS.items()}
    guards = tuple(sorted(guards, key=lambda guard: list(GUARDS).index(names[type(guard)])))
    for guard in guards:
        text += f",{names[type(guard)]}={_number(getattr(guard, fields(guard)[0].name))}"
    drafted = _written(drafter, DRAFTERS)
    if drafted != DEFAULT_DRAFTER:
        text += f"@{drafted}"
    return Arm(text, rule, guards, drafter)


def _parse(
    text: str, table: dict[str, type], what: str, extras: dict[str, type]
) -> tuple[Any, list]:
    """An instance of a class of the table, and of the extras that its fields name."""
    first, *others = text.split(",")
    name, colon, value = first.partition(":")
    if name not in table:
        alone = f" (or {PLAIN}, {', '.join(BY_TRANSFORMERS)})" if what == "rule" else ""
        raise BadInput(f"unknown {what} {name!r}; known: {', '.join(table)}{alone}")
    known = {field.name: field for field in fields(table[name])}
    given: dict[str, Any] = {}
    found = []
    if colon:
        if not known:
            raise BadInput(f"{what} {name} takes no value, got {value!r}")
        main = _value_field(table[name])
        given[main.name] = _read(main, main.name, value)
    for other in others:
        key, equals, value = other.partition("=")
        if not equals or key not in known and key not in extras:
            every = ", ".join([*known, *extras]) or "none"
            raise BadInput(f"{other!r} is no FIELD=VALUE of {what} {name}; fields: {every}")
        if key in given or any(isinstance(extra, extras.get(key, ())) for extra in found):
            raise BadInput(f"{key} is given twice")
        if key in known:
            given[key] = _read(known[key], key, value)
        else:
            found.append(extras[key](_read(fields(extras[key])[0], key, value)))
    return table[name](**given), found


def _read(field: Field, name: str, text: str) -> float | int | str:
    try:
        return field.type(text)
    except ValueError as error:
        raise BadInput(f"{name} must be {NAMES[field.type]}, got {text!r}") from error


def _value_field(kind: Any) -> Field | None:
    return next(iter(fields(kind)), None)


def _written(settings: Any, table: dict[str, type]) -> str:
    """name[:value][,field=value], without what has its default; a number is always stated."""
    name = next(name for name, kind in table.items() if type(settings) is kind)
    text, main = name, _value_field(settings)
    for field in fields(settings):
        value = getattr(settings, field.name)
        stated = field is main and field.type is not str
        if stated or field.default is MISSING or value != field.default:
            text += f":{_number(value)}" if field is main else f",{field.name}={_number(value)}"
    return text


def _number(value: float | int | str) -> str:
    if not isinstance(value, float):
        return str(value)
    value += 0.0  # -0 is 0
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
