"""OpenVLA-OFT: OpenVLA's weights, a whole chunk of actions decoded in one bidirectional pass."""
