"""The loss of a step, with which the module's other outputs can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as trees

from runtime.module.gradient import plainly


class Loss(Tensor):
    """The loss of the whole batch, one number.

    A training loop may use it as the returned value itself, or as ``.loss``, ``["loss"]`` or
    ``[0]``, whatever the original module returns. Other outputs of the module are found where the
    module has them, such as ``.logits``, and are computed when they are read. Functions of the loss
    return plain tensors.

    Ranks add up their parts of the loss while the backward pass goes on. Reading the value waits
    for the sum.
    """

    _itself: Callable[[], Any]
    _wait: Callable[[], None]
    _output: Any

    @classmethod
    def of(cls, value: Tensor, itself: Callable[[], Any], wait: Callable[[], None]) -> Loss:
        """``itself``: computes the output of the original module. ``wait``: waits until the value
        of the loss is there."""
        loss = value.as_subclass(cls)
        loss._itself, loss._wait = itself, wait
        return loss

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not Tensor.backward:
            for argument in trees.tree_leaves((tuple(args), dict(kwargs))):
                if isinstance(argument, Loss) and "_wait" in argument.__dict__:
                    argument._wait()
        with plainly():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Tensor:
        """A copy as a plain tensor."""
        return self.detach().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle it as a plain tensor."""
        return self.detach().__reduce_ex__(protocol)

    @property
    def loss(self) -> Tensor:
        return self

    @property
    def output(self) -> Any:
        """The output of the original module, without gradients. All ranks have to read it
        together."""
        if "_output" not in self.__dict__:
            self._output = self._itself()
        return self._output

    def __getattr__(self, name: str) -> Any:
        # Python and torch look up many special names. These must not run the module.
        if name.startswith("_") or "_itself" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.output, name)

    def __getitem__(self, place: Any) -> Any:
        if place in ("loss", 0):
            return self
        if "_itself" not in self.__dict__:
            raise KeyError(place)
        return self.output[place]

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield self
        if "_itself" in self.__dict__ and isinstance(self.output, (tuple, list)):
            yield from self.output[1:]
