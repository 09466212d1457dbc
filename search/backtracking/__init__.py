"""The search of Unity's paper: backtracking over substitutions, over splits, over machine
mappings."""
