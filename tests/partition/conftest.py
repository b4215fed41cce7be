import pytest

from tfdp.partition.rules.registry import Step


@pytest.fixture
def layouts(monkeypatch):
    """The layouts that rules gave, as text, by the type of the operation."""
    found = {}
    results = Step.results

    def noted(step, *args, **kwargs):
        tensors = results(step, *args, **kwargs)
        found.setdefault(step.op.type, set()).update(str(each.layout) for each in tensors)
        return tensors

    monkeypatch.setattr(Step, "results", noted)
    return found
