"""The engine's time a round without anybody's weights, and what the loop takes of memory.

shapes.py           public shapes of large targets
random_weights.py   a target and a head of a shape with random weights
rounds.py           the loop's rounds with a fixed acceptance pattern, timed
roofline.py         bytes that a forward must read, and the device's measured bandwidth
report.py           figures and table
memory.py           peak memory of a piece of work, exact on CPU and CUDA

Random weights say nothing of quality: how many drafts are accepted is an input here.
"""
