"""What the random attacker attacks: a source of its own for each seed, with its oracle."""
