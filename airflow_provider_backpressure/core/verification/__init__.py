"""What a hydration must pass before it ends: completeness, and a comparison of target and source."""
