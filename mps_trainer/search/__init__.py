"""The search for hyper-parameters: transformers' back ends, and what a run does differently when it is a trial."""
