"""Where tensors lie: machine views, layouts, the transfers between layouts, and the schedule of
steps."""
