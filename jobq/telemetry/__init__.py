"""What a worker shows to those who run it: health, metrics, traces, the worth of its pod. All off by default."""
