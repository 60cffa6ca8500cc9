"""EBS backend: Amazon EBS volumes of one account and region."""
