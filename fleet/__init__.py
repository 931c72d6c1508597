"""The planner: settings and facts in, one plan out. Nothing in the planning modules reads or writes anything."""
