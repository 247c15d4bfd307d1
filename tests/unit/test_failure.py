"""A rank's exception in the words of the taxonomy, with phase and size where they can be known."""

import pydantic
import pytest

from bench.worker.failure import UnsupportedError, failure, status_of


class OutOfMemoryError(RuntimeError):
    """As torch names it, whose own cannot be had without a GPU."""


def train_step(engine):
    engine.forward()
    engine.backward()
    engine.step()


class Engine:
    def __init__(self, where, error):
        self.where, self.error = where, error

    def __getattr__(self, name):
        def forward():
            self.act("forward")

        def backward():
            self.act("backward")

        def step():
            self.act("step")

        return {"forward": forward, "backward": backward, "step": step}[name]

    def act(self, name):
        if name == self.where:
            raise self.error


def caught(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error
    pytest.fail("raised nothing")


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_phase_and_size_of_an_allocation_that_failed(where):
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which ..."
    found = failure(3, "timed pass", caught(train_step, Engine(where, OutOfMemoryError(message))))
    assert (found["status"], found["phase"], found["requested_bytes"]) == ("oom", where, 2**31)
    assert (found["rank"], found["type"]) == (3, "OutOfMemoryError")


def test_building_is_init_and_other_activities_have_no_phase():
    error = MemoryError()
    assert failure(0, "building the engine", error)["phase"] == "init"
    assert failure(0, "building the model", error)["phase"] == "init"
    assert failure(0, "gathering the results", error)["phase"] is None
    assert failure(0, "building the model", error)["status"] == "oom"


def test_status_of_what_an_exception_was_raised_from():
    def build():
        try:
            raise RuntimeError("Error building extension 'cpu_adam': ...")
        except RuntimeError as error:
            raise AttributeError("no attribute 'ds_opt_adam'") from error

    def handle():
        try:
            raise OutOfMemoryError("Tried to allocate 8 bytes")
        except OutOfMemoryError:
            {}["missing"]

    assert status_of(caught(build)) == "build_error"
    found = failure(0, "counting pass", caught(handle))
    assert (found["status"], found["type"], found["requested_bytes"]) == ("oom", "KeyError", 8)


def test_status_of_plain_exceptions():
    class Model(pydantic.BaseModel):
        size: int

    assert (
        status_of(
            caught(
                Model,
            )
        )
        == "config_error"
    )
    assert status_of(UnsupportedError("no fp16")) == "unsupported"
    assert status_of(KeyError("x")) == "crashed"
    assert status_of(SystemExit(1)) == "crashed"
    looped = KeyError("x")
    looped.__context__ = ValueError("y")
    looped.__context__.__context__ = looped
    assert status_of(looped) == "crashed"
