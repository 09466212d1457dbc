"""A page on which people browse the rule library: each rule as a picture of both graphs."""
