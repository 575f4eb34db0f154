"""Signed tasks: keys, what signs when tasks are pushed, and whose signatures a worker trusts."""
