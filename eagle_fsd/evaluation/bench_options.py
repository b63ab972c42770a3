"""Options of the commands that let arms answer questions."""

from dataclasses import dataclass, field, replace

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.evaluation.arms import BASELINES, Arm
from eagle_fsd.evaluation.questions import Question, spread
from eagle_fsd.models.model_options import DecodeOptions, option

# fastchat/llm_judge/common.py, temperature_config; other categories are asked at 0.7
CATEGORY_TEMPERATURES = {
    "writing": 0.7,
    "roleplay": 0.7,
    "extraction": 0.0,
    "math": 0.0,
    "coding": 0.0,
    "reasoning": 0.0,
    "stem": 0.1,
    "humanities": 0.1,
    "arena-hard-200": 0.0,
}
OTHER_CATEGORIES = 0.7


@dataclass
class RunOptions:
    """Of every command that lets arms answer questions."""

    output: str = option("runs/bench", "folder of the run")
    questions: int | None = option(None, "how many, over all categories; default 8 on CPU, or all")
    turns: int = option(0, "turns of each question; 0: all")
    generate_questions: int | None = option(None, "questions that `generate` answers; default all")
    num_choices: int = option(1, "answers of an arm to a question, each with its own seed")
    max_new_tokens: int = option(128, "budget of an answer")
    quality_only: bool = option(False, "give no speeds: others may use the machine meanwhile")
    traces: int = option(0, "questions whose rounds are kept for the report, over all categories")

    def __post_init__(self):
        StopConfig(self.max_new_tokens)  # its own check
        for name, least in {"turns": 0, "num_choices": 1, "traces": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"--{name} must be at least {least}, got {getattr(self, name)}")

    def choose(self, questions: list[Question], device: str) -> list[Question]:
        """As many as were asked for, evenly over the categories, cut to the turns asked for."""
        usual = min(8, len(questions)) if device == "cpu" else len(questions)
        questions = spread(questions, usual if self.questions is None else self.questions)
        if self.turns:
            questions = [replace(q, turns=q.turns[: self.turns]) for q in questions]
        return questions

    def sampling(self, arm: Arm, question: Question, decoding: DecodeOptions) -> SamplingConfig:
        """How an arm answers a question."""
        return arm.sampling or decoding.sampling()


@dataclass
class BenchOptions(RunOptions):
    """Of commands whose arms are rules with their thresholds."""

    arms: list[str] = field(
        default_factory=lambda: ["generate", "plain", "exact", "fsd"],
        metadata={"help": "of generate, plain, exact, fsd, fsd-paper, random"},
    )
    thresholds: list[float] = field(
        default_factory=lambda: [0.2, 0.4], metadata={"help": "T of the fsd and fsd-paper arms"}
    )
    rates: list[float] = field(
        default_factory=lambda: [0.05], metadata={"help": "r of the random arms"}
    )
    category_temperatures: bool = option(False, "temperature by category, as FastChat asks them")

    def build_arms(self, decoding: DecodeOptions) -> list[Arm]:
        """The arms, checked; every rule gets an arm per threshold."""
        built: list[Arm] = []
        for name in dict.fromkeys(self.arms):
            if name in BASELINES:
                built.append(Arm(name))
                continue
            values = {"exact": [0.0], "random": self.rates}.get(name, self.thresholds)
            built += [Arm.with_rule(decoding.accept(name, t)) for t in dict.fromkeys(values)]
        return built

    def sampling(self, arm: Arm, question: Question, decoding: DecodeOptions) -> SamplingConfig:
        """How an arm answers a question: FastChat's temperature of its category, if asked for."""
        if not self.category_temperatures:
            return super().sampling(arm, question, decoding)
        temperature = CATEGORY_TEMPERATURES.get(question.category, OTHER_CATEGORIES)
        return replace(decoding.sampling(), temperature=temperature)
