"""FlexFlow: degrees and devices of each operator, by a random walk on simulated plans."""
