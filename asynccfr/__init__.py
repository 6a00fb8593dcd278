"""Deep CFR on one box: thousands of traversals, one batching inferer, one process."""
