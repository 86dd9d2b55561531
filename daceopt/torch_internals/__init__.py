"""Every private name of PyTorch that daceopt uses, behind functions and types of ours; no other room names one."""
