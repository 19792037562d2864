"""Conversion between an environment's spaces and the arrays that networks and buffers use."""

from rl_training.envs.space_json import space_from_json, space_to_json
from rl_training.envs.space_leaves import UnsupportedSpace
from rl_training.envs.spaces.action_codec import ActionCodec
from rl_training.envs.spaces.observation_encoder import ObservationEncoder

__all__ = ["ActionCodec", "ObservationEncoder", "UnsupportedSpace", "space_from_json", "space_to_json"]
