"""The sections of a run's settings: one section for each part of the trainer. Not here: the config of a whole run."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from pydantic import Field

from palaestra.errors import ConfigError
from palaestra.options import SERVICE
from palaestra.trainers.validation import BELOW_ONE, COUNT, NOT_NEGATIVE, POSITIVE, SHARE, check_fields

TrackerNames = tyro.conf.UseAppendAction[tuple[Literal["wandb", "trackio", "tensorboard"], ...]]
"""Names of trackers, one per option on the command line: `--track wandb --track tensorboard`."""


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """Changes to the prompts of a model that is loaded."""

    chat_template: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """File with a chat template in Jinja, in place of the model's own."""
    system: str = ""
    """Text that stands in the system message, before the environment's own system text."""

    def require_loaded(self, loaded: bool) -> None:
        """Raise a ConfigError if a prompt is to be changed although no model is loaded."""
        if not loaded and (self.chat_template is not None or self.system):
            name = "system" if self.chat_template is None else "chat-template"
            raise ConfigError(f"--{name} is for a model that is loaded from a folder or hub name; name it with --model")


@dataclass(frozen=True, slots=True)
class PlayConfig:
    """How episodes are played."""

    num_prompts: Annotated[int, COUNT] = 64
    """Number of tasks per step."""
    num_generations: Annotated[int, Field(ge=2)] = 16
    """Episodes of each task: one group."""
    temperature: Annotated[float, POSITIVE] = 1.0
    """Sampling temperature, in play and in the loss."""
    max_turn_tokens: Annotated[int, COUNT] = 20_480
    """Maximum tokens of a turn; a turn that is cut there ends its episode."""
    max_episode_tokens: Annotated[int | None, Field(ge=2)] = None
    """Maximum tokens of a row: prompt, tool results and responses. By default the recipe's longest response
    plus 2560."""
    slots: Annotated[int, COUNT] = 256
    """Number of episodes played at once."""
    cache_tokens: Annotated[int | None, COUNT] = None
    """Maximum tokens whose keys and values the built-in engine caches; turns wait until there is space. By default
    `slots` rows of full length, or what fits."""
    ordered: bool = False
    """Make a run repeat bit by bit; the slowest tool then limits the speed."""
    max_broken_share: Annotated[float, SHARE] = 0.05
    """The run stops if more than this share of a step's episodes is BROKEN, or dropped for a reward that is not a
    number."""
    max_staleness: Annotated[int, NOT_NEGATIVE] = 0
    """Maximum number of batches played ahead of the learner. 0 plays and learns in turn; more needs an engine with its
    own weights."""
    max_logprob_gap: Annotated[float | None, POSITIVE] = None
    """The run stops if the log-probs of engine and trainer differ by more than this, on average over tokens of the
    newest weights. By default 0.001 for each token if both compute with the same float32 weights, else 0.1 on average.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_staleness and self.ordered:
            raise ConfigError(
                f"max_staleness is {self.max_staleness} and ordered is True; a run that plays ahead does not repeat "
                "bit by bit, for time decides which weights choose a token: set ordered to False (--play.no-ordered)"
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine that samples the agent's turns, and its servers."""

    kind: Literal["auto", "torch", "process", "vllm"] = "auto"
    """`torch` samples from the model in training, `process` from a copy in another process, `vllm` on servers. `auto`
    is `vllm` on a GPU if vLLM's environment is there, otherwise `torch`."""
    sampling_precision: Literal["same", "bfloat16"] = "same"
    """Precision of the built-in engine's matrix products on a CPU. `bfloat16` takes about half the time on a CPU with
    instructions for it; log-probs then differ from the trainer's by about 0.02, for which the loss should correct."""
    urls: Annotated[tuple[str, ...], SERVICE] = ()
    """Addresses of vLLM servers, as `palaestra serve vllm` prints them. Without any, the run starts a server of its own
    with `vllm`."""
    gpus: tuple[str, ...] = ()
    """GPUs of the run's own servers, one server each: numbers as in CUDA_VISIBLE_DEVICES. By default one server shares
    the GPU of the learner, and sleeps while that learns."""
    memory_share: Annotated[float, SHARE] = 0.3
    """Share of a GPU's memory that the run's own server may use on the learner's GPU."""
    python: Annotated[str, SERVICE] = ""
    """Python program of an environment with vLLM, for the run's own servers; by default that of `palaestra serve
    vllm`."""
    transfer: Literal["files", "nccl", "ipc"] = "files"
    """How weights are sent to the servers; `nccl` and `ipc` are vLLM's own transfers between GPUs, and need
    palaestra[vllm]."""
    weights_folder: Annotated[str, SERVICE] = ""
    """Folder for weights that are sent as files, if the servers are on other machines: all of them must be able to read
    it."""
    answer_seconds: Annotated[float, POSITIVE] = 600.0
    """Seconds for one turn; pauses are not counted."""
    restart_seconds: Annotated[float, POSITIVE] = 300.0
    """Seconds to wait for a server when none is available, or for a heartbeat of the engine process."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.urls and self.kind != "vllm":
            raise ConfigError(
                f"engine.kind is {self.kind!r} and engine.urls is {self.urls}; servers are named for vllm, and only "
                "for vllm: --engine.kind vllm --engine.urls http://127.0.0.1:8000"
            )
        if self.gpus and (self.urls or self.kind == "torch"):
            raise ConfigError("engine.gpus is for servers that the run starts itself: --engine.kind vllm, without urls")
        if self.kind == "vllm" and self.sampling_precision != "same":
            raise ConfigError(
                "engine.sampling_precision is a setting of the built-in engine; vLLM's precision is that of its servers"
            )


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """Settings of the optimizer: learning rates and their schedule."""

    algorithm: Literal["adamw", "muon"] = "adamw"
    """`muon` updates hidden matrices with Muon and the rest with AdamW: for a model that starts from random weights."""
    learning_rate: Annotated[float, NOT_NEGATIVE] = 1e-6
    """AdamW's."""
    matrix_learning_rate: Annotated[float, POSITIVE] = 0.03
    """Learning rate of Muon."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rates: `linear` falls to 5 % at the last step, `cosine` to 0 after it."""
    warmup_share: Annotated[float, BELOW_ONE] = 0.0
    """Share of the steps over which the learning rate rises."""
    adam_beta2: Annotated[float, BELOW_ONE] = 0.999
    """AdamW's second beta; the first is 0.9."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.01
    """Weight decay of AdamW and Muon."""
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 1.0
    """Gradients are scaled down to this norm."""
    micro_batch_tokens: Annotated[int, COUNT] = 16_384
    """Maximum tokens of one pass; shared prefixes count once. It affects memory and speed, not the result."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class BatchOptimizerConfig(OptimizerConfig):
    """Optimizer settings: learning rates and batch division."""

    num_mini_batches: Annotated[int, COUNT] = 4
    """Optimizer steps per pass, at most one per group."""
    num_iterations: Annotated[int, COUNT] = 1
    """Number of passes (epochs) over a batch. The ratio always refers to the policy that sampled the batch."""


@dataclass(frozen=True, slots=True)
class ScaleConfig:
    """Settings that make a larger model fit into memory."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of weights and computation. With bfloat16 the optimizer updates float32 copies of the weights, from
    float32 sums of their gradients. `auto` is bfloat16 on a GPU, and float32 on a CPU and for the tiny agent."""
    fit: bool | None = None
    """Choose the open settings, and lower the cache and micro-batches, so that the run fits into memory; by default on
    a GPU. On a CPU a run that does not fit is refused by default; with False the memory is not estimated."""
    optimizer_bits: Literal[32, 8] | None = None
    """Bits of AdamW's two moments: with 8 they take 2 bytes per trained weight, not 8 (palaestra[quantized]). By
    default 32, or what fits."""
    reduce_each_pass: bool | None = None
    """With several ranks: sum gradients over the ranks after each backward pass, so that a rank holds its share of
    them. Otherwise they are summed once a mini-batch, and a rank holds whole float32 gradients until then. None: chosen
    by the memory of a GPU; otherwise False."""
    optimizer_offload: bool | None = None
    """Keep the optimizer's moments and float32 copies in the host's memory, and on the GPU only during its steps. By
    default False, or what fits."""
    gradient_checkpointing: bool | None = None
    """Keep one tensor per layer for the backward pass and recompute the others. It takes about a third more time. By
    default False, or what fits."""
    lora_r: Annotated[int, NOT_NEGATIVE] = 0
    """Rank of a LoRA adapter, which is then the only part that is trained; 0 for no adapter. It needs
    palaestra[lora]."""
    lora_alpha: Annotated[float, POSITIVE] = 32.0
    """The output of the adapter is multiplied by `lora_alpha / lora_r`."""
    lora_target_modules: Annotated[tuple[str, ...], Field(min_length=1)] = ("all-linear",)
    """Layers with an adapter, by the ends of their names; `all-linear` for all but embeddings and output layer."""

    sharding: Literal["fsdp", "deepspeed"] = "fsdp"
    """With several ranks: what divides weights, gradients and moments among them, torch's FSDP2 or DeepSpeed's ZeRO-3
    (palaestra[deepspeed])."""
    sequence_parallel_size: Annotated[int, COUNT] = 1
    """Number of ranks that compute each row together, as DeepSpeed's Ulysses divides it (palaestra[deepspeed])."""
    rank_timeout: Annotated[float, POSITIVE] = 1800.0
    """Maximum seconds that a rank waits for the others: for the slowest episode of a step; for all episodes of a step
    or a measurement where the first rank plays alone."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class SaveConfig:
    """Files that are kept on disk."""

    checkpoint_every: Annotated[int | None, COUNT] = None
    """Steps between checkpoints; None for an epoch of imitation. There is always one at the end and at an interrupt."""
    keep_checkpoints: Annotated[int, COUNT] = 2
    """Number of checkpoints to keep; older ones are removed."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class PlaySaveConfig(SaveConfig):
    """Files that a GRPO run keeps on disk."""

    checkpoint_every: Annotated[int | None, COUNT] = 10
    """Steps between checkpoints. There is always one at the end and at an interrupt."""
    recorded_groups: Annotated[int, NOT_NEGATIVE] = 2
    """Number of groups per step whose episodes are kept on disk, in addition to all BROKEN ones; 0 keeps none."""


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """How the model is evaluated during the run."""

    eval_steps: Annotated[int | None, COUNT] = None
    """Steps between measurements on the held-out tasks; the model of the best one is kept. None measures only before
    and after."""
    early_stopping_patience: Annotated[int | None, COUNT] = None
    """The run ends after this many evaluations in a row without more success than the best one before them."""
    stop_when: Literal["solved"] | None = None
    """With `solved` the run ends once nothing is left to learn: five steps in a row in which every episode succeeded
    and all rewards of each group were equal. By default it only says so."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.early_stopping_patience is not None and self.eval_steps is None:
            raise ConfigError("early_stopping_patience counts measurements on the way; set eval_steps too")


@dataclass(frozen=True, slots=True)
class ColdStartConfig:
    """How the agent learns from demonstrations before the run. The defaults are the tiny agent's."""

    demonstrations: Annotated[int | None, COUNT] = None
    """Number of demonstrations. By default 6000 for the tiny agent, and no cold start for another model."""
    tool_rate: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Share of these episodes in which the demonstrator uses its tool."""
    layers: Annotated[int, COUNT] = 2
    """Number of layers of the tiny agent."""
    imitation_gate: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Success at which imitation may end, over the episodes in which a tool call succeeded. If no demonstration used a
    tool, the share of the demonstrations' success that all episodes must reach."""
    max_greedy_tool_share: Annotated[float | None, SHARE] = None
    """Largest share of greedy episodes that may use the tool when imitation ends; it continues until then. None: no
    limit."""
    imitation_steps: Annotated[int, COUNT] = 700
    """Number of steps after which an attempt that has not reached the gate ends."""
    imitation_warmup: Annotated[int, COUNT] = 20
    """Number of steps over which the learning rate rises."""
    imitation_decay: Annotated[int, NOT_NEGATIVE] = 150
    """Number of steps in which the learning rate falls to 0 once the gate is passed."""
    first_gate: Annotated[int, COUNT] = 300
    """Number of steps before the gate is first measured."""
    gate_every: Annotated[int, COUNT] = 50
    """Number of steps between measurements of the gate."""
    gate_episodes: Annotated[int, COUNT] = 192
    """Number of episodes that the gate is measured on."""
    imitation_batch_rows: Annotated[int, COUNT] = 32
    """Number of rows in each imitation step."""
    imitation_learning_rate: Annotated[float, POSITIVE] = 5e-5
    """Learning rate of AdamW for a pretrained model. The tiny agent uses Muon with its own rates."""
    max_attempts: Annotated[int, COUNT] = 5
    """Maximum number of initial weights that are tried for the tiny agent. A pretrained model has one attempt."""

    def __post_init__(self) -> None:
        check_fields(self)
