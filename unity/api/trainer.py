"""The Trainer of ``transformers``, for modules that train by a plan.

The original Trainer saves and reads on one rank. Here weights and optimizer states are shards, so
all ranks write and read them together with ``save_checkpoint``. The shards are in a folder of the
Trainer's checkpoint, beside whole weights in the files of transformers.

A Trainer reads ``accepts_loss_kwargs`` of its module in its constructor, and nothing else does. At
that moment its class is replaced by a class derived from it, which does all this.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from pcg.errors import InputError
from runtime.module.loss import Loss
from runtime.module.module import ParallelModule

SHARDS, GROUPS, SCHEDULE = "shards", "groups.json", "scheduler.pt"
"""Names in a checkpoint: folder of shards, optimizer settings, schedule as in transformers."""
ITEMS = "num_items_in_batch"
"""The Trainer's name for the number of labels in all batches of an update."""
THE_PLAN = "the plan decides"
THE_LOSS = "the loss is that of the plan, which takes another one as loss= of unity.optimize"
THE_MODULE = "the plan is of the module as it was"
REFUSED = {
    **dict.fromkeys(("gradient_checkpointing", "torch_compile", "deepspeed", "fsdp"), THE_PLAN),
    **dict.fromkeys(("parallelism_config", "auto_find_batch_size"), THE_PLAN),
    "label_smoothing_factor": THE_LOSS,
    **dict.fromkeys(("neftune_noise_alpha", "use_liger_kernel"), THE_MODULE),
}
"""Arguments of a Trainer that would train something else than the plan, with the reasons."""
ELEMENTWISE = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")
"""The optimizers by name that treat each element by itself, and so work on shards."""
ACCELERATE = 1, 14
"""The oldest release of accelerate that wraps no module which asks not to be wrapped."""


class ByPlan:
    """The methods of a Trainer that differ for a ``ParallelModule``."""

    args: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any
    accelerator: Any
    state: Any
    train_dataset: Any

    @contextmanager
    def autocast_smart_context_manager(self, *args: Any, **kwargs: Any) -> Generator[None]:
        """Compute in mixed precision, which accelerate applies only to modules that it wraps."""
        above: Any = super()
        with above.autocast_smart_context_manager(*args, **kwargs), self.accelerator.autocast():
            yield

    def get_train_dataloader(self) -> Any:
        """Return the loader. Raises InputError if the last batch would be short: several processes
        would fill it up with repeated samples, and in one process it would not fit the plan."""
        above: Any = super()
        loader, args = above.get_train_dataloader(), self.args
        data, whole = self.train_dataset, args.train_batch_size
        if not getattr(self.accelerator, "split_batches", False):
            whole *= self.accelerator.num_processes
        if args.dataloader_drop_last or not hasattr(data, "__len__") or len(data) % whole == 0:
            return loader
        read = args.max_steps * args.gradient_accumulation_steps * whole
        if args.max_steps <= 0 or read > len(data):
            problem = f"the last batch of {len(data)} samples has {len(data) % whole}, not {whole}"
            expected = "expected dataloader_drop_last=True, as a plan is for one size of batch"
            raise InputError("TrainingArguments dataloader_drop_last", f"{problem}, {expected}")
        return loader

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Return the names for the original module. Norms are known by the class of their module,
        which shards do not have."""
        above: Any = super()
        if self.args.weight_decay and model.itself is None:
            problem = "needs to know which parameters belong to norms, expected a module that"
            raise InputError("TrainingArguments weight_decay", f"{problem} can be copied")
        decayed = set(above.get_decay_parameter_names(model.itself or model))
        return [name for name, parts in model.parts.items() if decayed.issuperset(parts)]

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Count the items of all ranks together, as the loss is of all ranks."""
        above: Any = super()
        with self._averaging(True):
            return above._get_num_items_in_batch(*args, **kwargs)

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of the whole batch. If the original module computes it, it is this rank's
        share, and a mean over ranks follows, as for any module."""
        above: Any = super()
        with self._averaging(False):
            loss, outputs = above.compute_loss(model, inputs, True, num_items_in_batch)
        if not isinstance(outputs, Loss) and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    @contextmanager
    def _averaging(self, averages: bool) -> Generator[None]:
        """Whether the Trainer counts tokens over all ranks, and multiplies the loss by ranks."""
        before = self.args.average_tokens_across_devices
        self.args.average_tokens_across_devices = averages
        try:
            yield
        finally:
            self.args.average_tokens_across_devices = before

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate with the original module, because batches may have any size."""
        above: Any = super()
        with self.model.by_itself():
            return above.prediction_step(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write whole weights under the module's names, on rank 0. All ranks call together."""
        above: Any = super()
        state, module = self.model.state_dict(), self.model
        if self.args.should_save:
            # The original class saves its configuration, and tied weights once.
            self.model = module.itself or module
            try:
                above._save(output_dir or self.args.output_dir, state_dict=state)
            finally:
                self.model = module
        if self.args.push_to_hub and not _internal_call:
            above.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        folder = Path(output_dir)
        self.model.save_checkpoint(
            folder / SHARDS, _bare(self.optimizer), step=self.state.global_step
        )
        if self.args.should_save:
            groups = [
                {name: value for name, value in group.items() if name != "params"}
                for group in self.optimizer.param_groups
            ]
            (folder / GROUPS).write_text(json.dumps(groups), "utf-8")
            torch.save(self.lr_scheduler.state_dict(), folder / SCHEDULE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        above: Any = super()
        if (folder := Path(resume_from_checkpoint) / SHARDS).is_dir():
            self.model.load_checkpoint(folder)
        else:
            above._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        if not (folder / SHARDS).is_dir():
            problem = f"has no {SHARDS}, expected a checkpoint that a Trainer wrote by a plan"
            raise InputError(checkpoint, problem)
        self.model.load_checkpoint(folder / SHARDS, _bare(self.optimizer))
        groups = json.loads((folder / GROUPS).read_text("utf-8"))
        for group, saved in zip(self.optimizer.param_groups, groups, strict=True):
            pairs = {n: tuple(v) if isinstance(v, list) else v for n, v in saved.items()}
            group.update(pairs)
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULE, weights_only=True))


def _bare(optimizer: Any) -> Any:
    """Return an optimizer without accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


@cache
def by_plan(kind: type) -> type:
    """Return the class of Trainers derived from ``kind`` for modules that train by a plan."""
    return kind if issubclass(kind, ByPlan) else type(kind.__name__, (ByPlan, kind), {})


def asked(module: ParallelModule, frame: FrameType | None) -> bool:
    """Whether a module takes the number of items in a batch. If a Trainer asks, its class is
    replaced by one for plans. Raises InputError for arguments of the Trainer that contradict the
    plan."""
    asker = None if frame is None else frame.f_locals.get("self")
    if asker is not None and hasattr(type(asker), "_save_optimizer_and_scheduler"):
        _check_release()
        _check_arguments(asker)
        _check_scale(asker, module)
        asker.__class__ = by_plan(type(asker))
    return ITEMS in module.inputs


def _check_release() -> None:
    """Raise InputError if accelerate would wrap the module in a DistributedDataParallel."""
    with suppress(PackageNotFoundError):  # of a Trainer without accelerate
        release = version("accelerate")
        if tuple(int(part) for part in release.split(".")[:2]) < ACCELERATE:
            problem = f"{release} wraps modules that train by a plan"
            expected = f"expected {'.'.join(map(str, ACCELERATE))} or later"
            raise InputError("accelerate", f"{problem}, {expected}")


def _check_arguments(trainer: Any) -> None:
    for name, why in REFUSED.items():
        if getattr(trainer.args, name, None):
            raise InputError(f"TrainingArguments {name}", f"expected none: {why}")
    if getattr(trainer, "compute_loss_func", None) is not None:
        raise InputError("Trainer compute_loss_func", f"expected none: {THE_LOSS}")
    optimizer = getattr(trainer.args.optim, "value", trainer.args.optim)
    if optimizer not in ELEMENTWISE:
        problem = f"{optimizer} may need more of a weight than this rank's shard"
        expected = f"expected one of {', '.join(ELEMENTWISE)}, or optimizers= of the Trainer"
        raise InputError("TrainingArguments optim", f"{problem}, {expected}")


def _check_scale(trainer: Any, module: ParallelModule) -> None:
    """Raise InputError for a plan in fp16 if nothing scales the loss."""
    if module.needs_scale and getattr(trainer.accelerator, "scaler", None) is None:
        problem = "the plan computes in fp16, which needs a scaled loss, and accelerate scales it"
        expected = "expected True, and GPUs, or a plan of another precision"
        raise InputError("TrainingArguments fp16", f"{problem} on GPUs only, {expected}")
