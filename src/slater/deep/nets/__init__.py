"""Networks: what critics, policies and models of the data are made of."""
