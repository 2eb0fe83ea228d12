"""TapFinger: task placement and resource allocation for machine learning on edge clusters."""

__version__ = "0.1.0"
