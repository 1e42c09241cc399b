"""The paper's experiments and ours, one file each; `slater reproduce NAME` runs them."""
