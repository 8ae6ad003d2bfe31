"""Looks at training from outside: compatibility check, memory estimate, simulated device and self-test."""
