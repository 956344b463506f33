"""Looks into torch as tools do: sources, signatures, resources, pickles, documentation."""

import importlib.resources
import importlib.util
import inspect
import pickle

assert "__version__" in importlib.util.find_spec("torch").loader.get_source("torch")

import torch  # noqa: E402 - what stands above is about a torch that is not imported yet
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

for name in ("cross_entropy", "nll_loss", "mse_loss", "binary_cross_entropy_with_logits", "kl_div"):
    function = getattr(F, name)
    assert f"def {name}(" in inspect.getsource(function), name
    assert "reduction" in inspect.signature(function).parameters, name
    assert pickle.loads(pickle.dumps(function)) is function, name
    assert function.__doc__, name
    assert function.__module__ == "torch.nn.functional", name

assert importlib.resources.files("torch").joinpath("__init__.py").is_file()
assert "DistributedDataParallel" in inspect.getsource(nn.parallel.DistributedDataParallel)
assert "def add_param_group" in inspect.getsource(torch.optim.Optimizer.add_param_group)
assert "def named_parameters" in inspect.getsource(nn.Module.named_parameters)
assert inspect.signature(torch.compile).parameters["fullgraph"].kind is inspect.Parameter.KEYWORD_ONLY
assert torch.__spec__.loader is torch.__loader__
assert type(torch.__loader__).__module__.startswith(("importlib", "_frozen_importlib"))
assert importlib.util.find_spec("torch").origin == torch.__file__
loss = pickle.loads(pickle.dumps(nn.CrossEntropyLoss(reduction="sum")))
assert loss(torch.zeros(2, 3), torch.tensor([0, 1])).item() > 0
print("nothing is missing")
