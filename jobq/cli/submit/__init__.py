"""What `push` and `fanout` need of the terminal."""
