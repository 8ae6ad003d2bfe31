"""Compares the operator table with what the build of torch for Apple silicon registers for mps."""
