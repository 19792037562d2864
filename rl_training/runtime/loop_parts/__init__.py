"""The parts of the frame around a training loop, which `rl_training.runtime.trainer` puts together."""
