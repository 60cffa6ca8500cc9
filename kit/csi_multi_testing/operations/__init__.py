"""The state-changing operations of the contract, in a form into which the checks inject crashes and faults."""
