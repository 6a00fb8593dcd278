"""What is asked: external-sampling traversals, thousands in flight."""
