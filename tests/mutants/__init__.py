"""Small faults, each with the test that must fail under it: `make mutants` replays them all."""
