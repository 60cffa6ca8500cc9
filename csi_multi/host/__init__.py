"""What this machine is and does: commands, block devices, the mount table. Backends may import it."""

from .command import CommandFailed, CommandMissing, CommandTimedOut, Host, LocalHost, Result

__all__ = ["CommandFailed", "CommandMissing", "CommandTimedOut", "Host", "LocalHost", "Result"]
