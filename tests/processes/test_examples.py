"""Every example runs, and what it prints is what it promises. Most are started as the command would
do it, from an interpreter that has imported torch already. `two_tensors` is in `test_hvd`."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
LOCKSTITCH_RUN = ["lockstitch", "run", "-n"]
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node"]


def launch_example(name: str, workers: int, *arguments: str, launcher=LOCKSTITCH_RUN) -> str:
    """What the workers say, all together; they must end well and complain of nothing."""
    command = [sys.executable, "-m", *launcher, str(workers), f"examples/{name}.py", *arguments]
    job = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "Warning" not in job.stderr
    return job.stdout


@pytest.fixture
def run_example(warm_python, tmp_path) -> Callable[..., str]:
    """The same without a launcher: torch is there already."""

    def run(name: str, workers: int, *arguments: str) -> str:
        script = ROOT / "examples" / f"{name}.py"
        ranks = warm_python.run_ranks(script, tmp_path, workers, arguments)
        assert [each.status for each in ranks] == [0] * workers, ranks
        assert "Warning" not in "".join(each.errors for each in ranks)
        return "".join(each.output for each in ranks)

    return run


def numbers(pattern: str, output: str) -> list[float]:
    return [float(number) for number in re.findall(pattern + r"\s+([\d.e+-]+)", output)]


def test_two_trainers_train_one_parameter_server_at_once(run_example):
    output = run_example("parameter_server", 3, "4")

    for trainer in ("trainer1", "trainer2"):
        losses = numbers(rf"{trainer}: epoch\s+\d+\s+loss", output)
        assert len(losses) == 4
        assert losses[-1] < 0.7 * losses[0]
    assert numbers("server:", output)[0] > 85  # per cent; guessing gives 10


@pytest.mark.slow
def test_learning_to_learn_over_workers_equals_one_process(run_example):
    output = run_example("maml", 3, "30")

    (first,), (last,) = numbers("first rounds:", output), numbers("last rounds:", output)
    assert last < first
    assert numbers("one process:", output)[0] < 1e-9


def test_training_goes_on_while_trainers_are_killed_and_replaced():
    command = [sys.executable, "examples/elastic_parameter_server.py", "600", "3"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for trainer in ("trainer1", "trainer2", "trainer3"):
        assert f"{trainer} died: another one starts" in done.stdout
        assert f"{trainer} is back, in generation 1" in done.stdout
    losses = numbers(r"step\s+\d+\s+loss", done.stdout)
    assert len(losses) == 4
    assert losses[-1] < 0.5 * losses[0]


def test_language_model_learns_while_its_halves_live_apart(run_example):
    output = run_example("rnn_language_model", 2, "60")

    perplexities = numbers("perplexity", output)
    assert perplexities == sorted(perplexities, reverse=True)
    assert perplexities[-1] < 250  # of a vocabulary of 1,000
    assert "it says: the " in output


def test_learner_answers_all_actors_at_once_and_learns_from_them(run_example):
    output = run_example("actor_learner", 3, "8")

    rewards = numbers("reward", output)
    assert len(rewards) == 8
    assert rewards[-1] > 1.5 * rewards[0]
    assert numbers("policy of one process:", output) == [0.0]


def test_pipeline_of_three_stages_equals_the_model_in_one_process(run_example):
    output = run_example("pipeline", 3, "8")

    losses = numbers(r"step\s+\d+\s+loss", output)
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert losses == numbers("in one process", output)
    assert max(numbers("difference of gradients", output)) < 1e-12


@pytest.mark.slow
def test_transformer_in_stages_learns_what_it_learns_in_one_process(run_example):
    output = run_example("transformer_pipeline", 3, "30")

    losses = numbers(r"step\s+\d+\s+loss", output)
    assert len(losses) == 3
    assert losses[-1] < 2.9  # 4.85 are those of guessing
    assert numbers("greatest difference of losses:", output)[0] < 1e-3  # of bfloat16


@pytest.mark.parametrize(
    "launcher",
    [None, pytest.param(TORCHRUN, marks=pytest.mark.slow)],
    ids=["lockstitch", "torchrun"],
)
def test_ranks_in_the_manner_of_horovod_equal_one_process(launcher, run_example):
    if launcher is None:
        output = run_example("hvd_digits", 2, "3")
    else:
        output = launch_example("hvd_digits", 2, "3", launcher=launcher)

    losses = numbers(r"epoch \d+\s+loss", output)
    assert len(losses) == 6
    assert losses[:3] == losses[3:]  # together, and alone
    assert losses[2] < 0.5 * losses[0]
    assert numbers("2 ranks:", output)[0] > 85  # per cent; guessing gives 10
    assert numbers("between ranks", output) == [0.0]
    assert numbers("from one process", output)[0] < 1e-9


def test_replicas_with_a_table_elsewhere_equal_one_process():
    # Not as copies of the warm interpreter: where torch's compiler is imported, Gloo's last piece
    # of work wants the GIL when it goes, and whoever ends the group holds that and waits for it.
    output = launch_example("hybrid_ddp", 3, "60")

    losses = numbers(r"step\s+\d+\s+loss", output)
    assert losses[-1] < 0.8 * losses[0]
    assert numbers("between trainers", output) == [0.0]
    assert numbers("from one process", output)[0] < 1e-9


def test_replicas_of_a_pipeline_equal_one_process(run_example):
    output = run_example("pipeline_replicas", 4, "20")

    assert numbers("at last", output)[0] < 0.8 * numbers("at first", output)[0]
    assert numbers("between replicas", output) == [0.0]
    assert numbers("from one process", output)[0] < 1e-12


@pytest.mark.slow  # `test_elastic` has a program of this kind
def test_elastic_training_goes_on_when_a_worker_has_died():
    launcher = ["lockstitch", "run", "--min-np", "1", "-np"]
    output = launch_example("hvd_elastic", 2, "--crash", "3", launcher=launcher)

    assert "epoch 0 was finished by 2 ranks" in output
    assert len(re.findall(r"epoch 2 was finished by \d ranks", output)) == 1
    assert float(re.findall(r"([\d.]+)% of the test images", output)[0]) > 85  # guessing gives 10
    assert numbers("between ranks", output) == [0.0]


def test_accumulated_scaled_and_clipped_gradients(run_example):
    output = run_example("hvd_accumulation", 2, "4")

    assert "all ranks clipped alike: True" in output
    assert numbers("right:", output)[0] > 60  # per cent; guessing gives 10
    assert numbers("steps clipped:", output)[0] > 0


@pytest.mark.slow
def test_sparse_embeddings_travel_by_rows(run_example):
    output = run_example("hvd_embeddings", 2)

    assert numbers("right:", output)[0] > 70  # per cent; guessing gives 25
    assert numbers("rows per step:", output)[0] < 10_000
    assert numbers("between ranks", output) == [0.0]


@pytest.mark.slow
def test_replicas_share_an_embedding_on_a_parameter_server(run_example):
    output = run_example("hvd_parameter_server", 3)

    assert numbers("loss at last", output)[0] < 0.8 * numbers("loss at first", output)[0]
    assert numbers("between replicas", output) == [0.0]


@pytest.mark.slow
def test_slots_on_two_workers_train_as_one_process(run_example):
    output = run_example("remote_slots", 3, "2")

    losses = numbers(r"epoch\s+\d+\s+loss", output)
    assert losses[:2] == losses[2:]  # on three processes, and on one
    assert losses[1] < 0.5 * losses[0]
    assert numbers("from one process", output)[0] < 1e-9


@pytest.fixture
def run_plainly(warm_python, tmp_path) -> Callable[..., str]:
    """What the script says that is started without a launcher; it must complain of nothing."""

    def run(name: str, *arguments: str) -> str:
        done = warm_python.run(ROOT / "examples" / f"{name}.py", tmp_path, arguments)
        assert (done.status, done.errors) == (0, "")
        return done.output

    return run


def test_digits_are_read_by_two_processes_as_by_one(run_plainly):
    output = run_plainly("data_parallel_digits", "4")

    losses = numbers(r"epoch\s+\d+\s+loss", output)
    assert losses[:4] == losses[4:]  # on two processes, and on one
    assert losses[3] < 0.5 * losses[0]
    assert numbers("it knows", output)[0] > 50  # per cent; guessing gives 10
    assert "slot 1 (process" in output
    assert numbers("from the plain module", output)[0] < 1e-9


@pytest.mark.slow
def test_recommender_with_tables_on_two_servers_equals_one_process(run_example):
    output = run_example("recommender", 4, "200")

    losses = numbers(r"step\s+\d+\s+loss", output)
    assert len(losses) == 5
    assert numbers("loss of the last ten steps", output)[0] < 0.5 * losses[0]
    assert numbers("between trainers", output) == [0.0]
    assert numbers("from one process", output)[0] < 1e-9


@pytest.mark.slow
def test_graph_in_parts_on_three_workers_is_learned_as_in_one_process(run_example):
    output = run_example("graph_sage", 3, "60")

    losses = numbers(r"step\s+\d+\s+loss", output)
    assert len(losses) == 5
    assert losses[-1] < 0.8 * losses[0]
    assert numbers("right:", output)[0] > 45  # per cent; guessing gives 12.5
    assert numbers("from one process", output)[0] < 1e-9


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("lightning") is None,
    reason="lightning is not installed: pip install -e '.[c10d-test]'",
)
@pytest.mark.parametrize("launcher", [LOCKSTITCH_RUN, TORCHRUN], ids=["lockstitch", "torchrun"])
def test_lightning_trains_over_our_backend_as_over_gloo_and_alone(launcher):
    output = launch_example("lightning_digits", 2, "3", launcher=launcher)

    losses = numbers(r"epoch \d+\s+loss", output)
    assert len(losses) == 3
    assert losses[-1] < 0.5 * losses[0]
    assert numbers("right:", output)[0] > 85  # per cent; guessing gives 10
    assert numbers("from Gloo", output) == [0.0]
    assert numbers("from one process", output)[0] < 1e-9


@pytest.mark.slow
def test_a_model_with_dicts_batch_statistics_dropout_and_tied_weights_learns(run_plainly):
    output = run_plainly("data_parallel_model")

    assert "batches in the running mean: 150" in output
    assert "still tied: True" in output
    assert numbers("right:", output)[0] > 60  # per cent; guessing gives 8
    assert numbers("from the plain module", output)[0] < 1e-4


def test_programs_of_several_workers_say_how_to_start_them(warm_python, tmp_path):
    """Plain `python` would give a KeyError, another number of workers silence or a hang."""
    told = {}
    for path in sorted((ROOT / "examples").glob("*.py")):
        if "rpc.init_rpc" in path.read_text() and path.stem != "elastic_parameter_server":
            done = warm_python.run(path, tmp_path)
            assert (done.status, done.output) == (1, ""), path
            told[path.stem] = done.errors
    assert len(told) == 13
    for name, text in told.items():
        (workers,) = re.findall(rf"start it so: lockstitch run -n (\d) examples/{name}.py\n", text)
        description = (ROOT / "examples" / f"{name}.py").read_text().split('"""')[1]
        assert f"lockstitch run -n {workers} examples/{name}.py" in description
