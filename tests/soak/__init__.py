"""The soak: hydrations and steady state for half an hour with faults at random; and does anything grow meanwhile?"""
