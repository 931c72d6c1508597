"""Pulumi components: they wire, the planner in `fleet/` thinks, the node program in `node/` does."""
