"""The strategies of an operator on a mesh of devices, and which of them a planner may use."""
