"""`make demo`: the main job from start to end, on loopback, with a throw-away PKI and the stand-in AMS."""
