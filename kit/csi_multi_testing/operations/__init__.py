"""The state-changing operations of the contract, in a form that can be disturbed: crashes.py, faults.py."""
