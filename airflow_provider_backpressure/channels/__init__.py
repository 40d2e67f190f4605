"""Ways for diffs from process to process; see ``core.ports.Channel``."""
