"""Small faults, each with the test that must fail under it: `python -m tests.mutants` replays them all."""
