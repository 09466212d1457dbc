"""TePDist: strategies by cones and an integer program over them, stages where least passes."""
