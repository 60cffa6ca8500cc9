"""LVM backend: logical volumes of one volume group on one node."""
