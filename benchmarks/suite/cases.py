"""The environments of the suite with their smallest options, as SmolLM2 plays them."""

from dataclasses import dataclass

from palaestra.trainers.config.grpo_config import GRPOConfig, laptop_config

MODEL, FORMAT, SEED = "smollm2", "tags", 0


@dataclass(frozen=True)
class Case:
    """An environment with its smallest options, and limits of tokens that its demonstrator keeps."""

    name: str
    turn_tokens: int = 64
    row_tokens: int = 320
    options: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return the name and the options as a page shows them."""
        return " ".join((f"`{self.name}`", *(f"`{option}`" for option in self.options)))

    def config(self) -> GRPOConfig:
        """Return the settings of a run in this environment."""
        return laptop_config(
            f"palaestra/{self.name}",
            model=MODEL,
            device="cpu",
            seed=SEED,
            env_options=(*self.options, f"format={FORMAT}"),
            max_turn_tokens=self.turn_tokens,
            max_episode_tokens=self.row_tokens,
        )


CASES = (
    Case("Calculator-v0"),
    Case("TwoHop-v0", row_tokens=384),
    Case("Arithmetic-v0"),
    Case("negotiation-v0", row_tokens=384),
    Case("solver_critic-v0"),
    Case("debate-v0"),
    Case("Judge-v0", 80, 384, ("rubric=false",)),
    Case("Reasoning-v0", options=("generator=chain_sum",)),
    Case("SearchQA-v0", row_tokens=768, options=("world=plain", "kinds=single")),
    Case("Science-v0", 64, 448),
    Case("CodeMath-v0", 112, 448),
    Case("CodeContest-v0", 128, 640),
    Case("DataTable-v0", 128, 640),
    Case("WebNav-v0", row_tokens=1280, options=("depth=1", "size=2")),
    Case("Service-v0", row_tokens=1280, options=("level=small",)),
    Case("Service-v1", row_tokens=1280, options=("level=small",)),
    Case("HumanEval-v0", 128, 768),
    Case("LongQA-v0", row_tokens=2048, options=("size=4",)),
    Case("Research-v0", 192, 1792),
)
SKIPPED = {
    "WebShop-v0": "its purchases take some 15 calls and 2,900 tokens each, which is too long for this machine",
    "MiniWoB-v0": "it needs Chromium, and has no demonstrator",
}
