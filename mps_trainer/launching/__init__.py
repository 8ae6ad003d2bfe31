"""Asks for the settings of a launch and starts a script with them. No part of training."""
