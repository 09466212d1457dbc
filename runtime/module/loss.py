"""The loss of a step, found however a module's own is, and what else the module returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as trees

from runtime.module.gradient import plainly


class Loss(Tensor):
    """The loss of the whole batch, one number. A loop finds it as what is returned, as ``.loss``,
    ``["loss"]`` or ``[0]``, so that it need not know what the module itself would return. What else
    that returns is found as there, such as ``.logits``, and computed when it is asked for. Whatever
    is computed of the loss is a plain tensor.

    Ranks add their parts of it up while the backward pass goes on: it is waited for where it is
    looked at."""

    _itself: Callable[[], Any]
    _wait: Callable[[], None]
    _output: Any

    @classmethod
    def of(cls, value: Tensor, itself: Callable[[], Any], wait: Callable[[], None]) -> Loss:
        """``itself``: makes what the module returns; ``wait``: until the value is there."""
        made = value.as_subclass(cls)
        made._itself, made._wait = itself, wait
        return made

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
            for one in trees.tree_leaves((tuple(args), dict(kwargs))):
                if isinstance(one, Loss) and "_wait" in one.__dict__:
                    one._wait()
        with plainly():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Tensor:
        """A plain tensor."""
        return self.detach().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as a plain tensor."""
        return self.detach().__reduce_ex__(protocol)

    @property
    def loss(self) -> Tensor:
        return self

    @property
    def output(self) -> Any:
        """What the module itself returns, without gradients. All ranks have to ask together."""
        if "_output" not in self.__dict__:
            self._output = self._itself()
        return self._output

    def __getattr__(self, name: str) -> Any:
        # Names of Python's own are asked for by everybody, and need no module.
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
