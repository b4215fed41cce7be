"""What commands refuse: the last line says what must hold, what was received and what to do."""

import pytest

from benchmarks.__main__ import main

REFUSED = [
    ("fit --replicas 2,two", "received '2,two'", "do `--replicas 2,4`"),
    ("fit --replicas 0", "received '0'", "do `--replicas 2,4`"),
    ("fit --replicas 4 --processes 2", "received 4 and 2", "do `--replicas 2`"),
    ("fit --engine mpi", "received mpi", "do `--processes 2`"),
    ("fit --engine gloo --processes 2", "received 'gloo'", "do `--engine"),
    ("fit --rounds 0", "received 0", "do `--rounds 5`"),
    ("fit --timeout -1", "received -1", "do `--timeout 600`"),
    ("fit --json no/where/x", "'no/where/x'", "do `mkdir -p no/where`"),
    ("data --sources arrays,tape", "'arrays,tape'", "`--sources all`"),
    ("data --examples 60001", "received 60001", "do `--examples 60000`"),
    ("data --image-files 0", "received 0", "do `--image-files 2000`"),
    ("data --image-size 100", "received 100", "do `--image-size 224`"),
    ("data --batch-size 0", "received 0", "do `--batch-size 256`"),
    ("data --rounds 0", "received 0", "do `--rounds 5`"),
    ("data --json no/where/x", "'no/where/x'", "do `mkdir -p no/where`"),
    ("slow-links --order 0,0", "received 0,0", "do `--order 0,0,1,1`"),
    ("slow-links --order 0,2", "received 0,2", "do `--order 0,0,1,1`"),
    ("slow-links --only 99", "received 99", "do `--only 0,"),
    ("slow-links --model small", "received 'small'", "mlp, transformer"),
    ("accuracy-by-bytes --task cnn --only 99", "received 99", "do `--only 0,3`"),
    ("accuracy-by-bytes --task cnn --batch 5", "received 5", "do `--batch 6`"),
    (
        "accuracy-by-bytes --task cnn --batch 64 --examples 8",
        *("received 8", "do `--examples 64`"),
    ),
    ("convergence --task mpl", "'mpl'", "do `--task mlp`"),
    ("convergence --task mlp --batches many", "'many'", "do `--batches 64,4096`"),
    ("convergence --task mlp --optimizers lion", "'lion'", "do `--optimizers all`"),
    ("convergence", "required", "--task"),
]


@pytest.mark.parametrize(("command", "received", "remedy"), REFUSED)
def test_a_refusal_says_what_was_received_and_what_to_do(command, received, remedy, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(command.split())
    assert exit_.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert received in message and remedy in message
    assert "must" in message or "choices" in message or "required" in message
